//! The words that every room shares: plain values, which know nothing but themselves.
//!
//! Whether a process lives is a question to `sys` about an [`Identity`]; what a
//! [`Refusal`] is decided by lies in `policy`. Nothing here reads a clock or a file.
#![forbid(unsafe_code)]

/// An enum of words: each variant is one, in JSON and everywhere else.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            /// Its word, which does not change.
            pub const fn kind(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }
        }
    };
}
pub(crate) use words;

mod bytes;
mod exit;
mod id;
mod identity;
mod outcome;
mod refusal;
mod run;
mod time;
mod usage;

pub use bytes::Bytes;
pub use exit::{BY_SIGNAL, Exit};
pub use id::{chain_id, target_id};
pub use identity::Identity;
pub use outcome::{End, Outcome};
pub use refusal::{Hold, Refusal, Satisfied, outcome_of};
pub use run::{Base, Cap, DriverState, Kind, OnCap, TimerState, Use};
pub use time::{Boottime, Moment, NotASpan, Span, Walltime};
pub use usage::Usage;
