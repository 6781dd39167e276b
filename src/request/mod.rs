//! A request, from the process that makes it to the line that it prints:
//! observe ▸ judge ▸ take, by a waiter or by a converge driver ▸ note and say.
#![forbid(unsafe_code)]

mod case;
mod driver;
mod line;
pub mod observe;
mod order;
mod place;
mod waiter;

pub use case::case;
pub use driver::above as driver_above;
pub use order::Plan;
pub use place::{Place, find as place};
pub use waiter::wants_scope;

use anyhow::Result;

use crate::cli::{Global, Run};
use crate::config::{self, Settings, Surroundings};
use crate::model::{Base, Moment, Refusal, Span, Usage};
use crate::policy::delay;
use crate::state::change::Change;
use crate::state::files::token;
use crate::state::record::Timer;
use crate::sys::attributes::SignalState;
use observe::{Asked, Observation, observe, parent};

/// The name of a timer that got none.
const DEFAULT_NAME: &str = "again";

/// A request: what was typed and what is set.
#[derive(Debug)]
pub struct Request<'a> {
    /// What was typed.
    pub run: &'a Run,
    /// What is set.
    pub settings: Settings,
    /// Who asks.
    pub around: Surroundings,
    /// The timer's name.
    pub name: String,
    signals: SignalState,
}

/// What came of a request.
#[derive(Debug)]
pub enum Answer {
    /// It is granted, and this says what will happen.
    Taken(Change),
    /// It is not granted.
    Refused(Refusal),
}

impl<'a> Request<'a> {
    /// Puts together what was typed and what is set.
    ///
    /// # Errors
    /// A [`Usage`]: what of it is wrong.
    pub fn new(global: &Global, run: &'a Run, signals: SignalState) -> Result<Self> {
        let around = Surroundings::of_this_process();
        let settings = config::settings(global, run, &around)?;
        let name = run.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned());
        if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            return Err(Usage(format!(
                "a timer cannot have this name: use 1 to 200 bytes without control characters ('{}')",
                name.escape_debug()
            ))
            .into());
        }
        if run.command.first().is_some_and(|word| word.is_empty()) {
            return Err(Usage("the command has no name: its first word is empty".into()).into());
        }
        Ok(Request {
            run,
            settings,
            around,
            name,
            signals,
        })
    }

    /// Makes the request.
    ///
    /// # Errors
    /// What went wrong; no timer was set then, and no driver has the request.
    pub fn make(&self) -> Result<Answer> {
        let seen = self.observe(parent())?;
        // A driver above runs its own command again; another one is for a waiter.
        if let Some(driver) = driver::above(self, &seen) {
            return driver::take(self, &seen, &driver);
        }
        match &seen.plan {
            Ok(plan) => waiter::take(self, &seen, plan),
            // There is no target to note it of.
            Err(refusal) => Ok(Answer::Refused(refusal.clone())),
        }
    }

    /// Looks at the processes from `pid` upwards.
    ///
    /// # Errors
    /// What could not be read of the run, and why.
    pub fn observe(&self, pid: i32) -> Result<Observation> {
        let asked = Asked {
            command: &self.run.command,
            given: config::given_paths(self.run),
            settings: &self.settings,
            around: &self.around,
            signals: self.signals,
        };
        observe(pid, &asked)
    }

    /// The least wait that was asked for.
    pub fn delta(&self) -> Span {
        self.run.delta.unwrap_or(Span::ZERO)
    }

    /// The widest jitter that run `number` of a chain gets.
    pub fn jitter_range(&self, number: u32) -> Span {
        let Settings {
            jitter, max_jitter, ..
        } = self.settings;
        delay::jitter_range(self.delta(), jitter, max_jitter, number.saturating_sub(1))
    }

    fn base(&self) -> Base {
        if self.run.start_timer_now {
            Base::Request
        } else {
            Base::End
        }
    }

    /// The resource that asks. It is only shown, so nothing about it is an error.
    fn resource(&self) -> Option<String> {
        let text = self.run.resource.as_ref()?.to_string_lossy();
        let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let text: String = text.chars().take(200).map(plain).collect();
        (!text.is_empty()).then_some(text)
    }

    /// A timer for this request, not yet judged.
    fn timer(&self, place: &Place, now: &Moment) -> Timer {
        Timer {
            token: token(),
            chain: place.chain.clone(),
            run: place.run,
            origin: place.origin.clone(),
            resource: self.resource(),
            delta: self.delta(),
            jitter: Span::ZERO,
            base: self.base(),
            requested: now.clone(),
            waits_for: None,
            due: None,
            due_wall: None,
            hurry: false,
            put_off: Span::ZERO,
            held: None,
            waiter: None,
            boot: now.boot.clone(),
            cap: self.settings.cap,
            on_cap: self.settings.on_cap,
            scope: None,
        }
    }
}
