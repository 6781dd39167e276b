//! Turns of a waiter, which is the program's own code. Between two of them anything can happen.

use again::policy::waiter::Finish;
use again::state::record::Timer;
use again::state::store::Store;
use again::waiter::life::{self, Life};
use again::waiter::observer::{self, Observed};
use again::waiter::world::{World, may_pass, read_ticket};
use again_base::model::{Boottime, Identity};
use again_base::sys::machine::Machine;
use again_base::sys::pidfd;

use super::TARGETS;
use super::machine::{Kernel, Started};

/// Living waiter.
pub struct Waiter {
    pub process: Identity,
    pub target: usize,
    pub place: usize,
    pub life: Life,
    /// Due time that it has seen last.
    pub due: Option<Boottime>,
    /// Whether it has cleaned up the files that its request has left.
    has_begun: bool,
    /// Whether it has decided to launch, and does so in its next turn.
    pub launches: bool,
    /// Timer of the waiter, after it has become the rerun.
    timer: Option<Timer>,
}

/// Result of a waiter's turn.
pub enum Turn {
    /// The waiter lives; the value says whether it still waits.
    Goes(bool),
    /// The waiter has removed its timer from the record; `least` is when it was due, if a run has
    /// satisfied it.
    Finished {
        how: String,
        least: Option<Boottime>,
    },
    /// The waiter has become the rerun.
    Launched,
    Failed(String),
}

impl Waiter {
    /// Creates the waiter that was started with these descriptors. Must be called as the waiter's
    /// process.
    pub fn new(started: Started, store: Store) -> Self {
        let ticket = read_ticket(&started.order).expect("a ticket");
        let run = ticket.run.and_then(pidfd::hold);
        let target = TARGETS.iter().position(|id| **id == ticket.target);
        Waiter {
            process: started.process,
            target: target.expect("a target"),
            place: started.place,
            life: Life::new(World::new(ticket, store, started.order, started.lock, run)),
            due: None,
            has_begun: false,
            launches: false,
            timer: None,
        }
    }

    /// Returns the input of the observer of the rerun that the waiter has become.
    pub fn observed(mut self) -> Observed {
        Observed {
            order: self.life.world.read_order().expect("an order"),
            ticket: self.life.world.ticket,
            rerun: observer::Rerun {
                process: self.process,
                timer: self.timer.expect("started"),
                saves_environment: true,
            },
        }
    }

    /// Whether the launch has made its last call before the exec.
    pub fn has_emptied_order(&self) -> bool {
        let order = self.life.world.lock.metadata();
        order.expect("an order").len() == 0
    }

    /// Takes one turn.
    pub fn turn(&mut self, machine: &Kernel) -> Turn {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.life.begin(&mut || false);
            return Turn::Goes(true);
        }
        match self.act(machine) {
            Ok(turn) => turn,
            Err(e) if may_pass(&e) => Turn::Goes(true),
            Err(e) if format!("{e:#}").contains("is lost") => Turn::Goes(false),
            Err(e) => Turn::Failed(format!("{e:#}")),
        }
    }

    fn act(&mut self, machine: &Kernel) -> anyhow::Result<Turn> {
        if std::mem::take(&mut self.launches) {
            let Some(start) = self.life.launch(&mut || false)? else {
                return Ok(Turn::Goes(true));
            };
            machine.look();
            start.empty_order()?;
            machine.look();
            self.timer = Some(start.timer);
            return Ok(Turn::Launched);
        }
        let turn = self.life.turn(false, false)?;
        let World { store, ticket, .. } = &self.life.world;
        let record = store.read(&ticket.target).ok().flatten();
        let timer = |record| self.life.ledger.timer(record);
        let written = record.as_ref().and_then(timer).and_then(|timer| timer.due);
        let due = record.and_then(|record| self.life.ledger.due(&record));
        self.due = due.map(|due| due.at);
        match turn {
            life::Turn::Sleep(_) if due.is_some() && written != self.due => {
                anyhow::bail!(
                    "it sleeps until {:?}, and its record says {written:?}",
                    self.due
                );
            }
            life::Turn::Look | life::Turn::Sleep(_) => {}
            life::Turn::Launch => self.launches = true,
            life::Turn::Finish(finish) => {
                self.life.finish(&finish, false)?;
                return Ok(match finish {
                    Finish::Superseded | Finish::Interrupted => Turn::Goes(false),
                    finish => Turn::Finished {
                        least: due
                            .filter(|_| matches!(finish, Finish::Satisfied(..)))
                            .map(|due| due.least),
                        how: format!("{finish:?}"),
                    },
                });
            }
            life::Turn::End => return Ok(Turn::Goes(false)),
        }
        Ok(Turn::Goes(true))
    }
}
