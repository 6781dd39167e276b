//! `again-fleet slot`: waits until this run may start. Puppet calls it before a run
//! (prerun_command), and does not run if it fails.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::thread::sleep;
use std::time::{Duration, Instant};

use again_base::layout::say;
use again_base::model::{Boottime, Identity, Span};
use again_base::schema::slot::SlotState;
use again_base::sys::clock::boottime;
use again_base::sys::process;
use again_base::sys::terminal::clean;
use rand::RngExt;
use rustix::fs::{Mode, OFlags};

use super::service::{Conversation, Heard, socket};
use super::{Exit, Problem};
use crate::ask::{Answer, Question, Wish};
use crate::cli::Slot;
use crate::settings::{self, Flags, Surroundings};
use crate::wire::name::Name;

/// Longest outage of the service or the backend until the run goes ahead.
const PATIENCE: Span = Span::from_secs(10);
/// Range of the random delay of that: an outage of a backend concerns many nodes.
const SPREAD: Span = Span::from_secs(30);
/// Pause before the next connection to a service that does not answer.
const PAUSE: Span = Span::from_nanos(500_000_000);
/// Longest sleep before the clock is read again: the system's timers stop while a machine is
/// suspended.
const NAP: Span = Span::from_secs(60);

/// A waiting run.
struct Waiting {
    group: Name,
    since: Boottime,
    /// Start and reason of an outage during which the queue position is not known.
    away: Option<(Boottime, String)>,
    /// The last reason that was printed.
    said: String,
    output: Output,
}

/// Recipients of the messages.
struct Output {
    /// Whether standard output gets lines of JSON.
    is_json: bool,
    /// Another terminal.
    terminal: Option<File>,
}

/// End of a conversation.
enum Came {
    Turn,
    Refused(String),
    /// The service or the backend does not answer.
    Away,
    /// The time limit has passed.
    Over,
}

/// Waits for a slot.
///
/// # Errors
/// No slot was free in time, or the settings cannot be used.
pub fn main(flags: &Flags, around: &Surroundings, args: &Slot) -> Result<Exit, Problem> {
    let end = wait(flags, around, args);
    if let (true, Err(problem)) = (args.json, &end) {
        say(&SlotState::Refused(clean(&problem.to_string())).json())?;
    }
    end
}

fn wait(flags: &Flags, around: &Surroundings, args: &Slot) -> Result<Exit, Problem> {
    let mut output = Output {
        is_json: args.json,
        terminal: None,
    };
    let settings = match settings::settings(flags, around) {
        Ok(settings) => settings,
        Err(e) if settings::requires_slots(flags, around) => return Err(e.into()),
        // This run may be the one that fixes the settings, and many nodes may have them.
        Err(e) => {
            sleep(until(boottime() + drawn(PATIENCE + SPREAD)));
            return Ok(output.goes_ahead("", &e.0));
        }
    };
    let Some(group) = args.group.clone().or(settings.slots_group.clone()) else {
        return Ok(Exit::Done);
    };
    let run = match above() {
        Err(Problem::Failed(why) | Problem::Unreachable(why)) if !settings.slots_required => {
            return Ok(output.goes_ahead("", &why));
        }
        run => run?,
    };
    output.terminal = terminal_of(run);
    let question = Question::Slot(Wish {
        group: group.clone(),
        limit: settings.slots_limit,
        run,
        why: format!("process {}", run.pid),
    });
    let wait = args.max_wait.unwrap_or(settings.slots_max_wait);
    let since = boottime();
    let end = since + wait;
    let mut waiting = Waiting {
        group,
        since,
        away: Some((since, "the service of this node says nothing".to_owned())),
        said: String::new(),
        output,
    };
    let path = socket(&settings);
    while boottime() < end {
        let soon = end.min(boottime() + PATIENCE);
        let begun = Conversation::begin(&path, &question, Instant::now() + until(soon));
        let came = begun.and_then(|one| waiting.hear(one, end, settings.slots_required));
        let came = match came {
            Ok(came) => came,
            Err(Problem::Failed(why) | Problem::Unreachable(why)) => {
                waiting.is_away(why);
                Came::Away
            }
            Err(e) => return Err(e),
        };
        match came {
            Came::Turn => {
                waiting.turn();
                return Ok(Exit::Done);
            }
            Came::Refused(why) if settings.slots_required => return Err(Problem::Failed(why)),
            Came::Refused(why) => return Ok(waiting.output.goes_ahead("", &why)),
            Came::Away if waiting.gives_up(settings.slots_required) => {
                return Ok(waiting.go_ahead());
            }
            Came::Away => sleep(until(end.min(boottime() + PAUSE))),
            Came::Over => {}
        }
    }
    if !settings.slots_required && waiting.away.is_some() {
        return Ok(waiting.go_ahead());
    }
    Err(waiting.not_in_time(wait))
}

/// Time until `at`, at most [`NAP`].
fn until(at: Boottime) -> Duration {
    Duration::from_nanos(at.since(boottime()).min(NAP).nanos())
}

/// A random time up to `most`.
fn drawn(most: Span) -> Span {
    Span::from_nanos(rand::rng().random_range(0..=most.nanos()))
}

/// Parent of this process.
fn above() -> Result<Identity, Problem> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    match process::identify(parent) {
        Ok(run) if run.pid > 1 => Ok(run),
        _ => Err(Problem::Failed(
            "the run that waits has ended, or is the first process of a container".to_owned(),
        )),
    }
}

impl Output {
    /// Reports a state: on standard output, and in the other places. The run waits even if the
    /// output cannot be written.
    fn tell(&self, state: &SlotState) {
        let line = clean(&format!("again-fleet: {}", state.sentence()));
        let _ = match self.is_json {
            true => say(&state.json()),
            false => say(&line),
        };
        tell_also(self.terminal.as_ref(), &line);
    }

    fn goes_ahead(&self, how: &str, why: &str) -> Exit {
        let words = clean(&format!("goes ahead without a slot{how}: {why}"));
        self.tell(&SlotState::Starts(words));
        Exit::Done
    }
}

/// Repeats a line on the terminal of the run and in the system log. Puppet reads the output of its
/// prerun_command and shows it to no one.
fn tell_also(terminal: Option<&File>, line: &str) {
    if let Some(mut terminal) = terminal {
        let _ = writeln!(terminal, "{line}");
    }
    if !std::io::stdout().is_terminal()
        && let Ok(log) = UnixDatagram::unbound()
    {
        let _ = log.set_nonblocking(true);
        // Facility daemon, severity notice: syslog(3).
        let _ = log.send_to(format!("<29>{line}").as_bytes(), "/dev/log");
    }
}

/// The terminal of a process's standard error, unless the output of this process is on a terminal.
fn terminal_of(run: Identity) -> Option<File> {
    let path = format!("/proc/{}/fd/2", run.pid);
    let device = std::fs::read_link(&path).ok()?;
    let device = device.to_string_lossy();
    let is_one = device.starts_with("/dev/pts/") || device.starts_with("/dev/tty");
    if !is_one || std::io::stdout().is_terminal() {
        return None;
    }
    // Non-blocking, for a terminal whose output is stopped.
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(path, flags, Mode::empty());
    terminal.ok().map(File::from).filter(File::is_terminal)
}

impl Waiting {
    /// Reads answers and prints the reason for the wait, until the wait ends.
    fn hear(
        &mut self,
        mut conversation: Conversation,
        end: Boottime,
        is_required: bool,
    ) -> Result<Came, Problem> {
        loop {
            let give_up = self.away.as_ref().filter(|_| !is_required);
            let give_up = give_up.map_or(end, |(since, _)| end.min(*since + PATIENCE));
            match conversation.next(Instant::now() + until(give_up))? {
                Heard::Answer(Answer::End) => return Ok(Came::Turn),
                Heard::Answer(Answer::Refused(why)) => return Ok(Came::Refused(why)),
                Heard::Answer(Answer::Away(why)) => self.is_away(why),
                // The queue position is not known yet.
                Heard::Answer(Answer::Waits(what)) if what.is_empty() => {
                    self.is_silent("this node does not see its place in line yet".to_owned());
                }
                Heard::Answer(Answer::Waits(what)) => {
                    self.away = None;
                    self.say(&what);
                }
                Heard::Answer(_) => {
                    return Err(conversation.problem("answered something else than was asked"));
                }
                Heard::Silence if boottime() >= end => return Ok(Came::Over),
                Heard::Silence if boottime() >= give_up => return Ok(Came::Away),
                Heard::Silence => {}
                Heard::End => {
                    self.is_away("the service of this node has ended".to_owned());
                    return Ok(Came::Away);
                }
            }
        }
    }

    fn is_away(&mut self, why: String) {
        self.say(&format!(": {why}"));
        self.is_silent(why);
    }

    fn is_silent(&mut self, why: String) {
        let since = self
            .away
            .as_ref()
            .map_or_else(boottime, |(since, _)| *since);
        self.away = Some((since, why));
    }

    /// Prints the reason for the wait if it has changed.
    fn say(&mut self, why: &str) {
        if self.said != why {
            why.clone_into(&mut self.said);
            let words = clean(&format!("waits for a slot of group '{}'{why}", self.group));
            self.output.tell(&SlotState::Waits(words));
        }
    }

    fn turn(&self) {
        if !self.said.is_empty() {
            let (group, waited) = (&self.group, boottime().since(self.since).nanos());
            let waited = Span::from_secs(waited / 1_000_000_000);
            let words = format!("has a slot of group '{group}' after {waited}");
            self.output.tell(&SlotState::Starts(words));
        }
    }

    /// Whether an outage has lasted too long for a run that may go ahead without a slot.
    fn gives_up(&self, is_required: bool) -> bool {
        let away = self.away.as_ref();
        !is_required && away.is_some_and(|(since, _)| *since + PATIENCE <= boottime())
    }

    fn go_ahead(&self) -> Exit {
        let pause = drawn(SPREAD);
        let (group, seconds) = (&self.group, pause.nanos() / 1_000_000_000);
        let how = format!(" of group '{group}', {seconds} s from now");
        let done = self.output.goes_ahead(&how, &self.why());
        sleep(until(boottime() + pause));
        done
    }

    fn why(&self) -> String {
        let why = self.away.as_ref().map(|(_, why)| why.clone());
        why.unwrap_or_else(|| "others run".to_owned())
    }

    fn not_in_time(&self, wait: Span) -> Problem {
        let (group, why) = (&self.group, self.why());
        Problem::Failed(format!(
            "no slot of group '{group}' within {wait}: {why}; 'again-fleet slots' shows who runs and who waits"
        ))
    }
}
