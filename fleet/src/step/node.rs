//! What this node tells of itself: one letter, replaced in place, that is never let go.

use again::model::{Moment, Walltime};

use super::letters;
use super::model::{Action, Content, Draft, LetterId, State};
use crate::policy::term::Term;
use crate::wire::inventory::Inventory;

/// Tells this, if it is not what is told already. The triggers of a run that told something to select by wait for it; those of
/// others do not.
pub(super) fn tell(state: &mut State, news: Inventory, now: &Moment, out: &mut Vec<Action>) {
    let older = state.letters.get(&LetterId::Node);
    let known = older.and_then(|older| match &older.content {
        Content::Node(known) => Some(known),
        _ => None,
    });
    let is_kept = older.is_some_and(|older| older.not_kept.is_none());
    if is_kept && known.is_some_and(|known| known.tells_the_same(&news)) {
        return;
    }
    let version = older.map_or(0, |older| older.version) + 1;
    if known.is_none_or(|known| !known.is_selected_as(&news)) {
        state.first = version;
    }
    let draft = Draft {
        letter: LetterId::Node,
        version,
        content: Content::Node(news),
        term: Term {
            began: now.clone(),
            until: Walltime::from_millis(u64::MAX),
        },
    };
    letters::write(state, vec![draft], now, out);
}
