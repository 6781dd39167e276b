//! `again enable`: requests are granted again, and held timers fire.

use anyhow::Result;

use super::{plural, say};
use crate::cli::{Global, Run};
use crate::config::{self, Surroundings};
use crate::model::Exit;
use crate::state::store::Store;
use crate::sys::clock::moment;

/// Enables. The waiters of held timers see the file go.
///
/// # Errors
/// What could not be removed.
pub fn main(global: &Global) -> Result<Exit> {
    let settings = config::settings(global, &Run::default(), &Surroundings::of_this_process())?;
    let store = Store::existing(&settings.state_dir);
    let was = store.disabled();
    // Counted first: once it is enabled they go.
    let held = held(&store);
    if !store.enable()? {
        say(&format!(
            "again: nothing to do: again is not disabled (state in {})",
            settings.state_dir.display()
        ))?;
        return Ok(Exit::Success);
    }
    let was = was.as_ref().map_or_else(
        || "it was disabled".to_owned(),
        |disabled| format!("it was {}", super::disable::state(disabled)),
    );
    super::say_logged(&format!(
        "again: enabled: requests are granted again ({was}; {held} held timer{} let go)",
        plural(held)
    ))?;
    Ok(Exit::Success)
}

/// How many timers are due and held by nothing but this.
fn held(store: &Store) -> usize {
    let now = moment();
    let records = store
        .targets()
        .into_iter()
        .filter_map(|id| store.read(&id).ok().flatten());
    records
        .flat_map(|record| record.timers.into_values())
        .filter(|timer| timer.boot == now.boot && timer.due.is_some_and(|due| due <= now.uptime))
        .filter(|timer| timer.held.is_some())
        .count()
}
