//! Waits for a run to end, and ends it.

use std::time::Duration;

use super::driving::{Driving, Ending};
use crate::sys::foreground;
use crate::sys::sleep::Wake;
use again_base::model::{Boottime, End, Identity, Span};
use again_base::sys::clock::boottime;
use again_base::sys::{pidfd, process};

/// Time that a run has to end after a second signal, or after the timeout.
const GRACE: Span = Span::from_secs(10);

/// Interval for searching the processes of a run for Puppet, which takes longer than that to load.
const LOOK: Span = Span::from_nanos(400_000_000);

/// Run in progress.
struct Attended<'a, 'b> {
    driving: &'a mut Driving<'b>,
    run: Identity,
    /// Reason why the run was ended, if it was.
    ending: Option<Ending>,
    /// Processes that were sent a signal to end.
    told: Vec<Identity>,
    /// Number of signals that the driver received.
    signals: u32,
    kill_at: Option<Boottime>,
}

/// Waits for the run to end, and passes signals on to it. Returns how the run ended, and why it was
/// ended, if it was.
///
/// # Errors
/// Failures of the driver itself.
pub fn attend(driving: &mut Driving<'_>, run: Identity) -> Result<(End, Option<Ending>), Ending> {
    let mut attended = Attended {
        driving,
        run,
        ending: None,
        told: Vec::new(),
        signals: 0,
        kill_at: None,
    };
    let end = attended.wait()?;
    attended.see_off()?;
    Ok((end, attended.ending))
}

impl Attended<'_, '_> {
    fn wait(&mut self) -> Result<End, Ending> {
        loop {
            // Until the next event that ends the run for certain.
            let end = self.kill_at.or(self.driving.deadline());
            let look = self.driving.known.looks().then(|| boottime() + LOOK);
            let until = end.into_iter().chain(look).min();
            match self.driving.sleeper.sleep(None, until, None)? {
                Wake::Child => {
                    if let Some(end) = foreground::reap(self.run.pid) {
                        return Ok(end);
                    }
                }
                Wake::Signal {
                    number,
                    by_terminal,
                } => self.on_signal(number, by_terminal),
                Wake::Time if end.is_some_and(|end| end <= boottime()) => self.on_time(),
                Wake::Time => self.driving.known.look_below(self.run),
                // The pending requests are known only when the run has ended.
                Wake::Ended | Wake::Changed | Wake::Hurry | Wake::NoMore => {}
            }
        }
    }

    fn on_signal(&mut self, number: i32, by_terminal: bool) {
        self.signals += 1;
        let now = boottime();
        let pid = self.run.pid;
        self.tell(number, by_terminal);
        self.ending.get_or_insert(Ending::Signal(number));
        match self.signals {
            1 => self.driving.screen.say(&format!(
                "signal {number}: waits for the run to end (pid {pid})"
            )),
            2 => {
                self.kill_at.get_or_insert(now + GRACE);
                self.driving.screen.say(&format!(
                    "signal {number} again: the run is killed in {GRACE} if it does not end"
                ));
            }
            _ => self.kill_at = Some(now),
        }
    }

    fn on_time(&mut self) {
        let now = boottime();
        if self.kill_at.is_some() {
            self.kill_all();
            // Once more, for processes that were forked meanwhile.
            self.kill_at = Some(now + Span::from_secs(1));
        } else {
            self.driving.screen.say(&format!(
                "the timeout has passed: the run is ended (pid {}), and killed in {GRACE} if it does not end",
                self.run.pid
            ));
            self.tell(nix::libc::SIGTERM, false);
            self.ending.get_or_insert(Ending::TimedOut);
            self.kill_at = Some(now + GRACE);
        }
    }

    /// Sends a signal to the run, and to the processes below it in our process group, as ^C on our
    /// terminal would. A signal from the terminal has already reached them.
    fn tell(&mut self, signal: i32, by_terminal: bool) {
        let run = self.run;
        let group = nix::unistd::getpgrp().as_raw();
        let own = process::stat(run.pid).map_or(0, |stat| stat.pgrp);
        for (who, its) in std::iter::once((run, own)).chain(process::descendants(run.pid)) {
            if who != run && its != group {
                continue;
            }
            if !(by_terminal && its == group)
                && let Ok(handle) = pidfd::open(who)
            {
                let _ = handle.signal(signal);
            }
            self.told.push(who);
        }
    }

    /// Kills the run and everything below it.
    fn kill_all(&self) {
        let below = process::descendants(self.run.pid).into_iter();
        for who in std::iter::once(self.run).chain(below.map(|(who, _)| who)) {
            if let Ok(handle) = pidfd::open(who) {
                let _ = handle.signal(nix::libc::SIGKILL);
            }
        }
    }

    /// Waits for the processes that were sent a signal and outlive the run itself: a wrapper may
    /// end before the puppet below it. The wait is limited, since a daemon that was started here
    /// may ignore the signal; such a daemon is killed if the run would be.
    fn see_off(&mut self) -> Result<(), Ending> {
        let patience = self.kill_at.unwrap_or(boottime() + GRACE);
        let mut kill = self.kill_at.is_some();
        while let Some(handle) = self.told.iter().find_map(|who| pidfd::open(*who).ok()) {
            match self
                .driving
                .sleeper
                .sleep(Some(&handle), Some(patience), None)?
            {
                Wake::Child => {
                    foreground::reap(0);
                }
                Wake::Signal { .. } => {
                    kill = true;
                    break;
                }
                Wake::Time => break,
                Wake::Ended | Wake::Changed | Wake::Hurry | Wake::NoMore => {}
            }
        }
        for handle in self.told.iter().filter_map(|who| pidfd::open(*who).ok()) {
            if kill && handle.signal(nix::libc::SIGKILL).is_ok() {
                handle.wait(Duration::from_nanos(GRACE.nanos()));
            }
        }
        Ok(())
    }
}
