//! A driver's main loop, from its first record to its last message.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::command::{Command, Input};
use super::driving::{Driving, Ending};
use super::known::Known;
use super::run::run;
use super::screen::Screen;
use super::verdict::verdict;
use crate::cli::Converge;
use crate::config::Settings;
use crate::policy::converge::{Because, Drive, Finish, Next};
use crate::state::driver::{self, Desk, Driver};
use crate::state::history::What;
use crate::state::newer::VERSION;
use crate::state::store::Store;
use crate::sys::foreground;
use crate::sys::sleep::{LOOK_AGAIN, Sleeper, Wake, Watch};
use again_base::model::{Boottime, Identity, Span, chain_id};
use again_base::sys::clock::{boottime, moment};
use again_base::sys::{pidfd, process};

/// Runs the command until no request for another run is left. Returns the exit status of this
/// process.
///
/// # Errors
/// Failures of the driver itself.
pub fn main(
    args: &Converge,
    settings: &Settings,
    target: String,
    command: Command,
    known: Known,
) -> Result<i32> {
    let store = Store::open(&settings.state_dir)?;
    let now = moment();
    driver::sweep(&store, &now);
    let me = process::own_identity().context("cannot read /proc, which has to be mounted")?;
    let desk = Desk::open(&store)?;
    let max_runs = settings.cap.max_runs.max(1);
    let deadline = args.timeout.map(|limit| now.uptime + limit);
    let driving = Driving {
        record: Driver {
            version: VERSION,
            token: desk.token().to_owned(),
            process: me,
            boot: now.boot.clone(),
            uid: again_base::sys::user::effective(),
            target,
            chain: chain_id(me, &now.boot),
            began: now.clone(),
            max_runs,
            run: 0,
            child: None,
            timers: BTreeMap::new(),
            resources: BTreeMap::new(),
            held: None,
        },
        drive: Drive::new(args.until, max_runs, deadline, args.retry),
        sleeper: Sleeper::new(command.signals).context("cannot take over the signals")?,
        input: Input::now(),
        screen: Screen::new(),
        last: None,
        args,
        command,
        known,
        store,
        desk,
    };
    let opened = format!("pid {}, at most {max_runs} runs", me.pid);
    driving.note(What::Opened, now, &opened);
    let command = driving.command.shown();
    driving.log(&format!("'again converge' begins: {command}, {opened}"));
    driving.live()
}

impl Driving<'_> {
    fn live(mut self) -> Result<i32> {
        let ending = loop {
            if let Err(ending) = self.step() {
                break ending;
            }
        };
        self.conclude(ending)
    }

    fn step(&mut self) -> Result<(), Ending> {
        let now = boottime();
        match self.drive.next(now) {
            Next::Wait(due, because) => self.wait(due, &because),
            Next::Start(because) => {
                self.await_room(&because)?;
                // Decided again after that wait.
                if self.drive.next(boottime()) == Next::Start(because.clone()) {
                    run(self, &because)?;
                }
                Ok(())
            }
            Next::Finish(finish) => {
                if self.desk.close() {
                    return Err(Ending::Finish(finish));
                }
                // A request arrived at the last moment.
                self.take_requests(now);
                Ok(())
            }
        }
    }

    /// Sleeps until a timer or another attempt is due.
    fn wait(&mut self, due: Boottime, because: &Because) -> Result<(), Ending> {
        let (next, most) = (self.drive.runs() + 1, self.drive.most());
        let why = match because {
            Because::Due(name) => format!("timer '{name}'"),
            _ => "no catalog was applied".to_owned(),
        };
        let what = format!("run {next} of at most {most} ({why}) starts in");
        if !self.screen.shows_progress() {
            let left = due.since(boottime());
            self.screen.say(&format!("{what} {left}"));
        }
        loop {
            let now = boottime();
            if now >= due {
                return Ok(());
            }
            let mut until = due;
            if self.screen.shows_progress() {
                let left = due.since(now).nanos();
                // Rounded up, so that the display counts down to 1.
                let seconds = Span::from_secs(left.div_ceil(1_000_000_000));
                self.screen.progress(&format!("{what} {seconds}"));
                until = now + Span::from_nanos((left - 1) % 1_000_000_000 + 1);
            }
            if self.sleep(None, Some(until), None)? == Wake::Hurry {
                self.drive.hurry(boottime());
                self.screen.say("brought forward by 'again now'");
                return Ok(());
            }
        }
    }

    /// Waits while another run of the agent holds the lock, or `again` is disabled.
    fn await_room(&mut self, because: &Because) -> Result<(), Ending> {
        // None: not set yet. Some(None): watching failed.
        let mut watch: Option<Option<Watch>> = None;
        loop {
            let holder = self.known.lock_holder();
            let what = self.in_the_way(because, holder);
            self.note_held(what.as_deref());
            let wake = match (holder, &watch) {
                (None, _) if what.is_none() => return Ok(()),
                (Some(holder), _) => match pidfd::hold(holder) {
                    Some(handle) => self.sleep(Some(&handle), self.deadline(), None)?,
                    None => continue,
                },
                (None, None) => {
                    // Checked once more after the watch is set, so that no change in between is
                    // missed.
                    watch = Some(Watch::on([self.store.root()]).ok());
                    continue;
                }
                (None, Some(watch)) => {
                    let look = watch.is_none().then(|| boottime() + LOOK_AGAIN);
                    let until = self.deadline().into_iter().chain(look).min();
                    self.sleep(None, until, watch.as_ref())?
                }
            };
            if wake == Wake::Time && self.deadline().is_some_and(|at| at <= boottime()) {
                return Err(Ending::Finish(Finish::Timeout));
            }
        }
    }

    /// Obstacle to the next run, in words.
    fn in_the_way(&self, because: &Because, holder: Option<Identity>) -> Option<String> {
        if let Some(holder) = holder {
            let pid = holder.pid;
            return Some(format!("waits for the agent run with pid {pid} to end"));
        }
        // The user asked for the first run explicitly.
        let disabled = self.store.disabled().filter(|_| *because != Because::First);
        let reason = match disabled?.reason {
            reason if reason.is_empty() => reason,
            reason => format!(" ({reason})"),
        };
        Some(format!(
            "again is disabled{reason}; waits for 'again enable'"
        ))
    }

    /// Prints how the driver ended, and returns the exit status.
    fn conclude(mut self, ending: Ending) -> Result<i32> {
        let now = moment();
        let (status, text) = verdict(&self, &ending, now.uptime);
        for (name, timer) in self.drive.timers() {
            self.note_timer(name, timer, What::Stopped, &text);
        }
        self.note(What::Closed, now, &text);
        self.log(&format!("'again converge' ends: {text}"));
        self.screen.table();
        // The record is removed before the last message: its reader must not find the driver any
        // more.
        drop(self.desk);
        if let Ending::Error(e) = ending {
            return Err(e);
        }
        let good = matches!(ending, Ending::Finish(Finish::Converged));
        self.screen.verdict(&text, good);
        if let Ending::Signal(signal) = ending
            && signal == nix::libc::SIGINT
        {
            // A shell ends its script too if this process dies from the signal (bash(1), SIGNALS).
            foreground::die_by(signal);
        }
        Ok(status)
    }
}
