//! `again enable`: requests are granted again, and held timers continue.

use anyhow::Result;

use super::{disable, targets};
use crate::cli::Global;
use crate::config;
use crate::state::change::About;
use crate::state::record::Record;
use crate::state::store::Store;
use again_base::layout::{plural, say_clean};
use again_base::model::Exit;
use again_base::sys::clock::moment;

/// Enables requests. The waiters of held timers notice that the file is removed.
///
/// # Errors
/// The file that could not be removed.
pub fn main(global: &Global) -> Result<Exit> {
    let settings = config::of_command(global)?;
    let store = Store::existing(&settings.state_dir);
    let was = store.disabled();
    // Counted first, because they continue once requests are enabled.
    let (records, exit) = targets::records(&store, store.pending());
    let held = held(records);
    if !store.enable()? {
        say_clean(&format!(
            "again: nothing to do: again is not disabled ({})",
            targets::place(&settings.state_dir)?
        ))?;
        return Ok(Exit::Success);
    }
    let was = was
        .as_ref()
        .map_or_else(|| "disabled".to_owned(), disable::state);
    let line = format!(
        "again: enabled: requests are granted again (it was {was}; {held} held timer{} let go)",
        plural(held)
    );
    About::default().log(&line);
    say_clean(&line)?;
    Ok(exit)
}

/// Number of timers that are due and held under this boot.
fn held(records: Vec<Record>) -> usize {
    let now = moment();
    let records = records.into_iter();
    records
        .flat_map(|record| record.timers.into_values())
        .filter(|timer| timer.boot == now.boot && timer.due.is_some_and(|due| due <= now.uptime))
        .filter(|timer| timer.held.is_some())
        .count()
}
