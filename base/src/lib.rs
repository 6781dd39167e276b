//! Library that `again` and `again-fleet` share.
//!
//! Nothing in it is specific to either program. A module uses only those below it:
//!
//! - [`settings`]: settings from several sources;
//! - [`schema`]: data that one program writes and the other one reads;
//! - [`puppet`]: Puppet's command lines and its configuration; [`directory`]: directories that
//!   nobody else can change; [`layout`]: text for people; [`toml`]: settings before they are interpreted;
//! - [`sys`]: the kernel, the clock, the log;
//! - [`delay`]: delta and jitter of a timer;
//! - [`model`]: plain values.

pub mod delay;
pub mod directory;
pub mod layout;
pub mod model;
pub mod puppet;
pub mod schema;
pub mod settings;
pub mod sys;
pub mod toml;
