//! A request for triggers of other nodes: which of them are new, in which timer they wait, and the
//! lineage of a run.

use anyhow::{Result, anyhow};

use super::asked::{Answer, Request};
use super::line;
use super::observe::Observation;
use super::order::Plan;
use crate::policy::next::{self, Slot};
use crate::state::change::Change;
use crate::state::history::What;
use crate::state::record::{Record, Timer};
use crate::state::reruns::Rerun;
use crate::state::store::Store;
use crate::state::triggered::Present;
use again_base::model::{Exit, Moment, Provenance};
use again_base::schema::origin::{Lineage, Taken, Trigger, Word};
use again_base::sys::clock::moment;

/// Lineage of the run above us: that of its rerun, and of the triggers whose job it does, whoever
/// started it.
pub fn lineage(
    seen: &Observation,
    plan: &Plan,
    uid: u32,
    rerun: Option<&Rerun>,
    store: &Store,
    now: &Moment,
) -> Lineage {
    let running = || rerun.and_then(|rerun| rerun.running.as_ref());
    let Some(who) = seen.run_identity() else {
        return running().map(|run| run.lineage.clone()).unwrap_or_default();
    };
    let present = Present {
        who,
        rerun,
        target: &plan.target,
        kind: plan.order.kind,
        uid,
    };
    store.lineage_of(&present, now)
}

/// Triggers of a word that no target has on record.
pub fn new(word: &Word, store: &Store, record: &Record) -> Vec<Trigger> {
    let others = store.triggered().into_iter();
    let others = others.filter(|id| *id != record.id);
    let others: Vec<Record> = others.filter_map(|id| store.read(&id).ok()?).collect();
    let all = || others.iter().chain([record]);
    let is_new = |one: &&Trigger| !all().any(|record| record.knows(one));
    word.triggers.iter().filter(is_new).cloned().collect()
}

/// Answer to a request without new triggers. Syncs the records first, since the earlier requester
/// may have died before they were on disk.
///
/// # Errors
/// The record that cannot be read or synced.
pub fn known(word: &Word, store: &Store) -> Result<Answer> {
    for id in store.triggered() {
        if let Some(record) = store.read(&id)? {
            store.keep(&record)?;
        }
    }
    let told = word.lineage(word.triggers.to_vec()).told();
    let numbers = word.triggers.iter().map(|one| one.number.to_string());
    let numbers: Vec<String> = numbers.collect();
    Ok(Answer {
        line: format!(
            "again: nothing to do: {} on record already (number {})",
            told.unwrap_or_default(),
            numbers.join(", "),
        ),
        exit: Exit::Success,
    })
}

/// Destination of a timer for triggers.
#[derive(Debug)]
pub enum Goes {
    /// No timer is set: the triggers wait in the timer of this name.
    With(String),
    /// The timer is set under this name, and may replace another.
    As(String),
}

/// Decides where this timer for triggers goes, and stores their numbers.
///
/// # Errors
/// There are too many triggers.
pub fn place(
    request: &Request<'_>,
    triggers: &Lineage,
    timer: &mut Timer,
    record: &mut Record,
    now: &Moment,
) -> Result<Goes> {
    let ready = now.uptime + request.delta();
    let due = timer.due.unwrap_or(ready);
    let names = request.names();
    let slot = |name: &String| {
        let timer = record.timers.get(name)?;
        let is_here = timer.provenance(now) == Provenance::Here;
        Some(Slot {
            due: timer.due.filter(|_| is_here),
            ready: timer.ready().filter(|_| is_here),
        })
    };
    let slots = [names.first().and_then(slot), names.get(1).and_then(slot)];
    let place = next::place(slots, ready, due, now.uptime);
    let remembered = record.remember(&triggers.triggers, now.wall);
    remembered.map_err(|why| anyhow!("{why}; ask again later"))?;
    let (goes, into) = match place {
        next::Place::With(at) => {
            let name = names[at].clone();
            let pending = record.timers.get_mut(&name);
            (Goes::With(name), pending.map_or(timer, |pending| pending))
        }
        next::Place::Free(at) | next::Place::Instead(at) => (Goes::As(names[at].clone()), timer),
    };
    let taken = Taken {
        from: ready,
        ready,
        lineage: triggers.clone(),
    };
    Taken::add(&mut into.taken, taken).map_err(|why| anyhow!("{why}; ask again later"))?;
    Ok(goes)
}

/// Change for triggers that join a pending timer.
pub fn go_with(request: &Request<'_>, name: &str, triggers: &Lineage, record: &Record) -> Change {
    let timer = &record.timers[name];
    Change::of_timer(&record.id, name, timer, What::Requested, moment())
        .because(line::wait(request, timer, triggers))
        .saying(line::goes_with(name, timer, triggers))
}
