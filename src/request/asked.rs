//! A request as typed and set, and its answer.

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

/// The name of a timer whose request gives none.
const DEFAULT_NAME: &str = "again";

/// A request: the options typed, the settings, and the caller.
#[derive(Debug)]
pub struct Request<'a> {
    /// What was typed.
    pub run: &'a Run,
    /// What is set.
    pub settings: Settings,
    /// The caller's surroundings.
    pub around: Surroundings,
    /// The timer's name.
    pub name: String,
    /// The triggers of other nodes that it is for.
    pub word: Option<Word>,
    /// Puppet's files, as the request names them.
    pub given: Paths,
    /// The signals that a named command is to have.
    pub signals: SignalState,
}

/// The line that answers a request, and its exit status.
#[derive(Debug)]
pub struct Answer {
    /// The line.
    pub line: String,
    /// The exit status.
    pub exit: Exit,
}

impl Answer {
    /// Notes a change in the history, and tells it to the system's log and to the caller.
    pub(super) fn of(store: &Store, change: Change, exit: Exit) -> Self {
        store.note(&change.entry);
        change.log();
        let line = change.line;
        Answer { line, exit }
    }
}

impl<'a> Request<'a> {
    /// Puts together what was typed and what is set.
    ///
    /// # Errors
    /// A [`Usage`]: what of it is wrong.
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
            // Other nodes are never refused for good.
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

    /// A request by settings that were read already.
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

    /// The home of anyone but root, whose Puppet has its files elsewhere.
    pub fn home(&self) -> Option<&Path> {
        self.around.home.as_deref().filter(|_| self.around.uid != 0)
    }

    /// The command that takes the place of the run's own, if there is one.
    pub fn replacement(&self) -> Option<&[OsString]> {
        let typed = Some(self.run.command.as_slice()).filter(|words| !words.is_empty());
        typed.or(self.settings.command.as_deref())
    }

    /// The least wait that was asked for.
    pub fn delta(&self) -> Span {
        self.run.delta.unwrap_or(Span::ZERO)
    }

    /// The widest jitter that run `number` of a chain gets.
    pub fn jitter_range(&self, number: u32) -> Span {
        if let Some(word) = &self.word {
            return word.jitter();
        }
        let (asked, most) = (self.settings.jitter, self.settings.max_jitter);
        delay::jitter_range(self.delta(), asked, most, number.saturating_sub(1))
    }

    /// The names of the timers that it may be about. Triggers of other nodes have two: what is due, and what comes next.
    pub fn names(&self) -> Vec<String> {
        let next = self.word.as_ref().map(|_| format!("{}-next", self.name));
        std::iter::once(self.name.clone()).chain(next).collect()
    }

    /// The exit status of a refusal. Triggers that are not on record are no success, whatever keeps them.
    pub fn exit(&self, refusal: &Refusal) -> Exit {
        match self.word {
            Some(_) => Exit::Failure,
            None => refusal.exit(),
        }
    }

    /// The moment from which its wait counts.
    pub fn base(&self) -> Base {
        if self.run.start_timer_now || self.word.is_some() {
            Base::Request
        } else {
            Base::End
        }
    }

    /// The resource that asks. It is only shown, so nothing about it is an error.
    pub fn resource(&self) -> Option<String> {
        let text = self.run.resource.as_ref()?.to_string_lossy();
        let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        let text: String = text.chars().take(200).map(plain).collect();
        (!text.is_empty()).then_some(text)
    }
}
