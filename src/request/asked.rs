//! A request with its options and settings, and its answer.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use crate::cli::{Global, Run};
use crate::config::{self, Settings, Surroundings};
use crate::puppet::paths::Paths;
use crate::state::change::Change;
use crate::state::store::Store;
use again_base::delay;
use again_base::model::{Base, Exit, OnCap, Refusal, Span, Usage};
use again_base::schema::origin::Word;
use again_base::sys::attributes::SignalState;

/// Name of the timer if the request does not give one.
const DEFAULT_NAME: &str = "again";

/// Request: command line options, settings and caller.
#[derive(Debug)]
pub struct Request<'a> {
    /// Command line options.
    pub run: &'a Run,
    /// Settings.
    pub settings: Settings,
    /// Facts about the caller.
    pub around: Surroundings,
    /// Name of the timer.
    pub name: String,
    /// Triggers of other nodes that the request is for.
    pub word: Option<Word>,
    /// Paths of Puppet's files that the request names.
    pub given: Paths,
    /// Signal state for a named command.
    pub signals: SignalState,
}

/// Answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// Message in one line.
    pub line: String,
    /// Exit status.
    pub exit: Exit,
}

impl Answer {
    /// Records a change in the history, writes it to the system log, and returns the answer for the
    /// caller.
    pub(super) fn of(store: &Store, change: Change, exit: Exit) -> Self {
        store.note(&change.entry);
        change.log();
        let line = change.line;
        Answer { line, exit }
    }
}

impl<'a> Request<'a> {
    /// Reads the settings, and checks the options.
    ///
    /// # Errors
    /// A [`Usage`] that says what is wrong.
    pub fn new(global: &Global, run: &'a Run, signals: SignalState) -> Result<Self> {
        let around = Surroundings::of_this_process();
        let settings = config::settings(global, run, &around)?;
        let mut request = Request::of(run, settings, around, signals);
        if let Some(text) = &run.origin {
            let word = Word::parse(&text.to_string_lossy());
            request.word = Some(word.map_err(|why| {
                let why: String = why.chars().take(200).collect();
                Usage(format!("the word behind --origin cannot be used: {why}"))
            })?);
            // Requests of other nodes are never refused for good.
            request.settings.on_cap = OnCap::Wait;
        }
        let name = &request.name;
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
        Ok(request)
    }

    /// Request with settings that were read already.
    pub fn of(
        run: &'a Run,
        settings: Settings,
        around: Surroundings,
        signals: SignalState,
    ) -> Self {
        Request {
            name: run.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned()),
            given: config::given_paths(run),
            word: None,
            run,
            settings,
            around,
            signals,
        }
    }

    /// Home directory, except for root, whose Puppet has its files elsewhere.
    pub fn home(&self) -> Option<&Path> {
        self.around.home.as_deref().filter(|_| self.around.uid != 0)
    }

    /// Command that replaces the run's own, if any.
    pub fn replacement(&self) -> Option<&[OsString]> {
        let typed = Some(self.run.command.as_slice()).filter(|words| !words.is_empty());
        typed.or(self.settings.command.as_deref())
    }

    /// Minimum wait that was requested.
    pub fn delta(&self) -> Span {
        self.run.delta.unwrap_or(Span::ZERO)
    }

    /// Maximum jitter of run `number` of a chain.
    pub fn jitter_range(&self, number: u32) -> Span {
        if let Some(word) = &self.word {
            return word.jitter();
        }
        let (asked, most) = (self.settings.jitter, self.settings.max_jitter);
        delay::jitter_range(self.delta(), asked, most, number.saturating_sub(1))
    }

    /// Names of the timers that the request may concern. Triggers of other nodes have two timers:
    /// the one that is due first, and the next.
    pub fn names(&self) -> Vec<String> {
        let next = self.word.as_ref().map(|_| format!("{}-next", self.name));
        std::iter::once(self.name.clone()).chain(next).collect()
    }

    /// Exit status of a refusal. Triggers that are not on record are never a success, whatever the
    /// reason.
    pub fn exit(&self, refusal: &Refusal) -> Exit {
        match self.word {
            Some(_) => Exit::Failure,
            None => refusal.exit(),
        }
    }

    /// Moment from which the wait counts.
    pub fn base(&self) -> Base {
        if self.run.start_timer_now || self.word.is_some() {
            Base::Request
        } else {
            Base::End
        }
    }

    /// Resource that sent the request. It is only shown, so an invalid one is not an error.
    pub fn resource(&self) -> Option<String> {
        let text = self.run.resource.as_ref()?.to_string_lossy();
        let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let text: String = text.chars().take(200).map(plain).collect();
        (!text.is_empty()).then_some(text)
    }
}
