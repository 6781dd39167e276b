//! End of a world, when no more faults occur.

use again::state::record::Record;

use super::event::Event;
use super::machine::{NANOS, PLACES};
use super::world::World;
use super::{Checked, TARGETS};

impl World {
    /// Ends all faults, and checks that every promise is kept, or ends for a reason.
    ///
    /// # Errors
    ///
    /// The invariant that does not hold.
    pub fn settle_down(&mut self) -> Checked {
        self.happen(&Event::Enable)?;
        self.downgrade()?;
        // A start of another machine that is dated ahead counts until an operator resets the count.
        if self.books.done.contains_key("starts of another machine") {
            for target in 0..TARGETS.len() {
                self.happen(&Event::Reset { target })?;
            }
        }
        for _ in 0..400 {
            for place in 0..PLACES {
                self.resume(place, None)?;
            }
            while !self.runs.is_empty() {
                self.happen(&Event::End { run: 0 })?;
            }
            let mut at = 0;
            while at < self.waiters.len() {
                let before = self.waiters[at].process;
                for _ in 0..7 {
                    if self.waiters.get(at).is_some_and(|w| w.process == before) {
                        self.step(at, None)?;
                    }
                }
                at += 1;
            }
            self.check()?;
            if self.waiters.is_empty() && !self.books.is_pending() {
                return self.nothing_left();
            }
            self.machine.pass(7 * NANOS);
        }
        Err(format!("it never settles: {:?}", self.books.promises))
    }

    /// Checks that each order on disk belongs to a timer, after a verb has cleaned up.
    fn nothing_left(&mut self) -> Checked {
        while !self.runs.is_empty() {
            self.happen(&Event::End { run: 0 })?;
        }
        for place in 0..PLACES {
            self.resume(place, None)?;
        }
        // A target whose record was never written is left to its next request.
        for id in TARGETS {
            let Ok(Some(record)) = self.store.read(id) else {
                continue;
            };
            // A process that another test starts has a copy of each lock until its exec.
            let mut left = usize::MAX;
            for _ in 0..500 {
                left = self.orders_left(id, &record);
                if left == 0 {
                    break;
                }
                std::thread::yield_now();
            }
            if left > 0 {
                return Err(format!("{left} orders are left on disk"));
            }
        }
        Ok(())
    }

    fn orders_left(&self, id: &str, record: &Record) -> usize {
        for place in 0..PLACES {
            let who = self.machine.born(place);
            self.machine.act(who, place, None, || {
                let now = self.machine.moment_in(place);
                self.store.remove_strays(record, &now);
            });
            self.machine.ends(who);
        }
        let orders = self.store.root().join("targets").join(id).join("orders");
        std::fs::read_dir(orders).map(Iterator::count).unwrap_or(0)
    }
}
