//! Text of what outlives a service: the highest tokens, and the locks that this node holds.

use again_base::model::{Boottime, Span};

use super::{Effect, LockState, Locks, Place, Stage};
use crate::service::small_map::SmallMap;
use crate::wire::lock::MOST_TOKEN;
use crate::wire::name::{Name, Node};

/// Beginning of the line with the number of a lock's newest reset.
const RESET: &str = "reset ";

impl Locks {
    /// Reads the locks of this node from the text of an earlier service: for each lock the highest
    /// token, the token with which all candidates were made to run, and the entry. The number of
    /// the newest reset is on a line of its own, which earlier versions ignore. Lines that cannot
    /// be read are ignored.
    pub fn read(me: Node, text: &str) -> Locks {
        let mut all = SmallMap::<Name, LockState>::default();
        for line in text.lines() {
            let reset = line
                .strip_prefix(RESET)
                .and_then(|line| line.split_once(' '));
            if let Some((number, name)) = reset
                && let Some(one) = name.parse().ok().and_then(|name| all.get_mut(&name))
            {
                one.reset = number.parse().unwrap_or(0);
                continue;
            }
            let mut words = line.splitn(6, ' ');
            let mut number = || words.next()?.parse::<i64>().ok();
            let mut one = || {
                let [token, fired, lease, first, revision] =
                    [number()?, number()?, number()?, number()?, number()?];
                let place = Place {
                    lease,
                    first: first.cast_unsigned(),
                    revision: revision.cast_unsigned(),
                };
                Some(LockState {
                    token: token.cast_unsigned().min(MOST_TOKEN),
                    fired: fired.cast_unsigned(),
                    place: Some(place).filter(|place| place.lease != 0),
                    ..LockState::default()
                })
            };
            if let Some(one) = one()
                && let Some(name) = words.next().and_then(|name| name.parse().ok())
            {
                all.insert(name, one);
            }
        }
        Locks {
            now: Boottime::default(),
            jitter: Span::ZERO,
            me,
            all,
            away: Some("the backend was not reached yet".to_owned()),
        }
    }

    /// Text of the locks, for [`Locks::read`].
    pub fn written(&self) -> String {
        let mut text = String::new();
        for (name, one) in &self.all.0 {
            let Place {
                lease,
                first,
                revision,
            } = one.place.unwrap_or_default();
            let (token, fired) = (one.token, one.fired);
            text += &format!("{token} {fired} {lease} {first} {revision} {name}\n");
            if one.reset > 0 {
                text += &format!("{RESET}{} {name}\n", one.reset);
            }
        }
        text
    }

    /// Records that the locks are on disk, so that resets are not undone any more. Returns the log
    /// messages about these resets.
    pub fn kept(&mut self) -> Vec<Effect> {
        let all = self.all.0.iter_mut();
        let undone = all.filter_map(|(_, one)| one.undone.take());
        undone.map(|undone| Effect::Note(undone.note)).collect()
    }

    /// Records that the locks could not be written: no lock may be taken, and resets that are not
    /// on disk are undone. Otherwise this node would not know after a restart that it has published
    /// them, and would reject the next ones. The resets are accepted when they are listed again.
    pub fn not_kept(&mut self) -> Vec<Effect> {
        for (_, one) in &mut self.all.0 {
            if let Some(undone) = one.undone.take() {
                (one.reset, one.reset_at) = (undone.reset, undone.reset_at);
                (one.token, one.fired) = (undone.token, undone.fired);
                one.before = undone.before;
            }
        }
        let names = self
            .all
            .0
            .iter()
            .filter(|(_, one)| one.stage != Stage::Idle);
        let names: Vec<Name> = names.map(|(name, _)| name.clone()).collect();
        names.iter().flat_map(|name| self.failed(name)).collect()
    }
}
