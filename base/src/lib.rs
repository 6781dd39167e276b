//! What `again` and `again-fleet` have in common.
//!
//! Nothing here knows what either program does. A module uses those below it:
//!
//! - [`settings`]: settings from several sources;
//! - [`schema`]: what one program writes and the other one reads;
//! - [`puppet`]: Puppet's command lines and its configuration; [`directory`]: directories that nobody else can change;
//!   [`layout`]: text for people; [`toml`]: settings as they are written;
//! - [`sys`]: the kernel, the clock, the log;
//! - [`delay`]: how long to wait;
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
