//! Types that every module shares: plain values without dependencies.
//!
//! `sys` checks whether the process of an [`Identity`] lives; `policy` decides on a [`Refusal`].
//! Nothing here reads a clock or a file.
#![forbid(unsafe_code)]

mod bytes;
mod exit;
mod id;
mod identity;
mod moment;
mod outcome;
mod place;
mod refusal;
mod run;
mod time;
mod tree;
mod usage;
mod words;

pub use bytes::Bytes;
pub use exit::{BY_SIGNAL, Exit};
pub use id::{chain_id, target_id};
pub use identity::Identity;
pub use moment::Moment;
pub use outcome::{End, Outcome};
pub use place::{Foreign, Place, Provenance};
pub use refusal::{Hold, Refusal, Satisfied, outcome_of};
pub use run::{Base, Cap, DriverState, Kind, LogLimits, Obstacle, OnCap, Stuck, TimerState, Use};
pub use time::{Boottime, NotASpan, Span, Walltime};
pub use tree::{Activity, Process, Tree};
pub use usage::Usage;
pub use words::{shown_words, words};
