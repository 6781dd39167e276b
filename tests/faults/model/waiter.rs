//! A waiter's turns. What it knows, sees, writes and takes off the record is the program's own, as is the world that it
//! looks at; between two turns anything can happen.

use std::cell::Cell;
use std::io::{self};

use again::outcome;
use again::policy::waiter::{Blocker, Finish, Step, View, step};
use again::state::history::{Entry, What};
use again::state::leaving;
use again::state::order::Order;
use again::state::record::{BeforeStart, Record, Running, Timer};
use again::state::reruns::Rerun;
use again::state::store::Store;
use again::waiter::ledger::Ledger;
use again::waiter::life;
use again::waiter::observer::{self, Observed};
use again::waiter::world::{World, may_pass, read_ticket};
use again_base::model::{Boottime, Identity};
use again_base::sys::clock::moment;
use again_base::sys::pidfd;

use super::TARGETS;
use super::above::running;
use super::machine::{Kernel, Started};

/// A living waiter.
pub struct Waiter {
    pub process: Identity,
    pub target: usize,
    pub place: usize,
    pub world: World,
    ledger: Ledger,
    order: Option<Order>,
    /// When it is due, as it saw it last.
    pub due: Option<Boottime>,
    /// It has cleaned up what its request has left.
    has_begun: bool,
    /// It has looked around, and acts on it in its next turn.
    looked: bool,
    /// It has decided to launch, and locks in its next turn.
    pub launches: bool,
    /// The run that holds the agent's lock.
    pub holder: Option<Blocker>,
    /// Its timer, once it has become the rerun.
    timer: Option<Timer>,
}

/// How far a launch got, for a waiter that is killed.
#[derive(Default)]
pub struct Progress {
    /// Its start is in the history.
    pub noted: Cell<bool>,
    /// Its order is empty, as the last thing before the exec.
    pub emptied: Cell<bool>,
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

type Done = anyhow::Result<Turn>;

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
            ledger: Ledger::new(&ticket, &moment().boot),
            world: World::new(ticket, store, started.order, started.lock, run),
            order: None,
            due: None,
            has_begun: false,
            looked: false,
            launches: false,
            holder: None,
            timer: None,
        }
    }

    /// The input of the observer of the rerun that it has become.
    pub fn observed(self) -> Observed {
        Observed {
            ticket: self.world.ticket,
            order: self.order.expect("read"),
            rerun: observer::Rerun {
                process: self.process,
                timer: self.timer.expect("started"),
                saves_environment: true,
            },
        }
    }

    /// Takes one turn.
    pub fn turn(&mut self, machine: &Kernel, store: &Store, progress: &Progress) -> Turn {
        let id = TARGETS[self.target];
        if !std::mem::replace(&mut self.has_begun, true) {
            // Where it cannot clean up it only says so.
            let _ = leaving::clean_up(store, id, &mut || false);
            return Turn::Goes(true);
        }
        let done = if self.launches {
            self.launch(machine, store, progress)
        } else {
            self.go_on(machine, store)
        };
        done.unwrap_or_else(|e| Turn::Failed(format!("{e:#}")))
    }

    fn timer_is_lost(&self, record: &Record) -> bool {
        self.ledger.timer(record).is_none()
    }

    /// As `life::Life::decide`, of one step.
    fn view(&mut self, record: &Record, looked: bool) -> anyhow::Result<View> {
        if looked && self.order.is_none() {
            self.order = Some(self.world.read_order()?);
        }
        self.world.look_at_runs(&mut self.ledger);
        let order = self.order.as_ref().filter(|_| looked);
        let mut view = self.world.view(&self.ledger, record, order)?;
        if let Some(at_due) = &mut view.at_due {
            at_due.holder = self.holder;
        }
        Ok(view)
    }

    /// As `life::Life::go_on`, one step of it.
    fn go_on(&mut self, machine: &Kernel, store: &Store) -> Done {
        let id = TARGETS[self.target];
        let record = match self.world.record() {
            Ok(record) => record,
            // It tries again, or reports that it is lost.
            Err(e) => return Ok(Turn::Goes(may_pass(&e))),
        };
        let looked = std::mem::take(&mut self.looked);
        let view = self.view(&record, looked)?;
        self.due = view.due.map(|due| due.at);
        match step(&view) {
            Step::Hold(hold) => self.write_down(record, Some(hold.to_string()), machine)?,
            Step::LookAround => self.looked = true,
            Step::Launch => self.launches = true,
            Step::PutOff(due) => {
                self.ledger.put_off(&record, due, view.now);
                self.due = Some(due);
            }
            Step::Finish(Finish::Superseded) => {
                store.remove_order(id, &self.world.ticket.token);
                return Ok(Turn::Goes(false));
            }
            Step::Finish(finish) => return self.finish(&finish, machine, store),
            _ => self.write_down(record, None, machine)?,
        }
        Ok(Turn::Goes(true))
    }

    /// As `life::Life::write_down`, before it sleeps.
    fn write_down(
        &self,
        mut record: Record,
        held: Option<String>,
        machine: &Kernel,
    ) -> anyhow::Result<()> {
        let now = moment();
        if !self.ledger.enter(&mut record, held.as_deref(), &now) {
            return Ok(());
        }
        let mut locked = self.world.lock(&self.ledger)?;
        if self.ledger.enter(&mut locked.record, held.as_deref(), &now) {
            machine.look();
            locked.commit()?;
            machine.look();
        }
        Ok(())
    }

    /// As `life::Life::finish`.
    fn finish(&self, finish: &Finish, machine: &Kernel, store: &Store) -> Done {
        let id = TARGETS[self.target];
        let mut locked = self.world.lock(&self.ledger)?;
        let due = self.ledger.due(&locked.record);
        let Some(change) = life::end(&self.ledger, &mut locked.record, finish, moment()) else {
            return Ok(Turn::Goes(false));
        };
        machine.look();
        locked.commit()?;
        machine.look();
        store.note(&change.entry);
        store.remove_order(id, &self.world.ticket.token);
        let is_satisfied = matches!(finish, Finish::Satisfied(..));
        Ok(Turn::Finished {
            how: format!("{finish:?}"),
            least: due.filter(|_| is_satisfied).map(|due| due.least),
        })
    }

    /// As `launch::launch`, up to the exec.
    fn launch(&mut self, machine: &Kernel, store: &Store, progress: &Progress) -> Done {
        let id = TARGETS[self.target];
        let mut locked = match store.lock_existing(id) {
            Ok(locked) if locked.set_aside.is_none() => locked,
            Ok(locked) if !self.timer_is_lost(&locked.record) => locked,
            Err(e) if may_pass(&e) => {
                self.launches = false;
                return Ok(Turn::Goes(true));
            }
            _ => return Ok(Turn::Goes(false)),
        };
        let now = moment();
        let settled = outcome::settle(store, &mut locked.record, &now);
        let view = self.view(&locked.record, true)?;
        if step(&view) != Step::Launch {
            self.launches = false;
            return Ok(Turn::Goes(true));
        }
        let whole = self.world.order_to_empty()?;
        let taken = self.ledger.take(&mut locked.record, &now);
        let mut timer = taken.ok_or_else(|| io::Error::other("no timer"))?;
        timer.run = locked.record.next_number(&timer.chain, timer.run);
        let running = self.running(&timer, &locked.record);
        store.note_rerun(&Rerun {
            process: self.process,
            boot: now.boot.clone(),
            place: now.place,
            target: id.into(),
            chain: timer.chain.clone(),
            run: timer.run,
            timer: self.world.ticket.name.clone(),
            daemon: None,
            running: Some(running.clone()),
        })?;
        locked.record.note_start(running, timer.cap);
        machine.look();
        locked.commit_start()?;
        drop(locked);
        machine.look();
        settled.note_without_logs(store, id);
        store.note(&Entry {
            target: id.into(),
            timer: self.world.ticket.name.clone(),
            token: timer.token.clone(),
            chain: timer.chain.clone(),
            run: timer.run,
            ..Entry::new(What::Started, now)
        });
        progress.noted.set(true);
        machine.look();
        whole.set_len(0)?;
        progress.emptied.set(true);
        machine.look();
        self.timer = Some(timer);
        Ok(Turn::Launched)
    }

    fn running(&self, timer: &Timer, record: &Record) -> Running {
        Running {
            token: timer.token.clone(),
            chain: timer.chain.clone(),
            run: timer.run,
            timer: self.world.ticket.name.clone(),
            lineage: timer.lineage.clone(),
            before_start: Some(Box::new(BeforeStart {
                timer: timer.clone(),
                seen_run: record.seen_run.clone(),
            })),
            ..running(self.process, moment())
        }
    }
}
