//! A waiter's turns: the program's own. Between two of them anything can happen.

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

/// A living waiter.
pub struct Waiter {
    pub process: Identity,
    pub target: usize,
    pub place: usize,
    pub life: Life,
    /// When it is due, as it saw it last.
    pub due: Option<Boottime>,
    /// It has cleaned up what its request has left.
    has_begun: bool,
    /// It has decided to launch, and does so in its next turn.
    pub launches: bool,
    /// Its timer, once it has become the rerun.
    timer: Option<Timer>,
}

/// What a waiter has done in its turn.
pub enum Turn {
    /// Whether it still waits.
    Goes(bool),
    /// It has taken its timer off the record; `least` is when it was due, if a run has done its job.
    Finished {
        how: String,
        least: Option<Boottime>,
    },
    /// It has become the rerun.
    Launched,
    Failed(String),
}

impl Waiter {
    /// The waiter that was started with these descriptors. Call as the waiter.
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

    /// The input of the observer of the rerun that it has become.
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

    /// Whether the last call of a launch before the exec was made.
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
