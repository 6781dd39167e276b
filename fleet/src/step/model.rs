//! What goes in, what comes out, and what is remembered in between.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{Boottime, Moment, Span, Walltime};
use serde::{Deserialize, Serialize};

pub use super::content::{Content, Draft, EntryId};
use super::outbox_share::{OF_A_SENDER, size};
use super::own_key::{OwnKey, OwnKeyState};
pub use super::register::{Found, Handed, Place, Sight};
pub(super) use super::register::{Register, Stage};
pub use super::said::{Said, SelectionState, StoredShown};
use crate::policy::fire::{Numbers, Request};
use crate::policy::judge::Rules;
use crate::policy::replay::TriggerKey;
use crate::policy::term::Term;
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::lineage::Lineage;
use crate::wire::name::{Id, Name, Node};
use crate::wire::outcome::{Outcome, Ran, TriggerStatus};
use crate::wire::quota::Quotas;
use crate::wire::trigger::Trigger;

/// Who asks this node for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// The service itself, which gets no answer.
    Service,
    /// Somebody on this machine, by the number of the connection.
    Connection(u64),
}

/// A trigger that came too early, and since when it is here.
pub(super) type Since = (TriggerKey, Boottime);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The backend can be reached, perhaps another one than before: what it confirmed may be gone. All registers for this node
    /// are seen after this, and all results heard.
    Reached,
    /// The backend cannot be reached. Every put and every removal under way has been answered.
    Lost,
    /// These registers for this node stand in the backend.
    Seen(Vec<Sight>),
    /// This register stands there no longer.
    Gone(Place),
    /// A target told this; its signature holds.
    Heard(TriggerStatus),
    /// An entry was signed and is on disk, or could not be kept.
    Kept {
        /// The entry.
        entry: EntryId,
        /// Which version of it.
        version: u64,
        /// Whether it is on disk, or why not.
        kept: Result<(), String>,
    },
    /// What this node is to tell of itself. Nothing is done if it is what it tells already.
    Inventory(Inventory),
    /// Something stands at this node's own key, where it publishes what it tells of itself, or nothing any more.
    OwnKey {
        /// Revision of the write.
        revision: u64,
        /// Value at the key.
        found: OwnKey,
    },
    /// Everything that stands at this node's own key was seen after [`Event::Reached`]; or the backend does not show it.
    OwnKeySeen {
        /// Whether the backend showed it.
        is_shown: bool,
    },
    /// The watch of this node's own key was lost; it goes on trying.
    OwnKeyLost,
    /// Half a minute or so has passed: what is old is signed anew.
    Beat,
    /// The backend has shown all nodes, with those that count although it has lost what they had published.
    Nodes(Vec<Inventory>),
    /// The backend has shown its nodes; others may still return after a loss, for that long.
    NodesIncomplete(Span),
    /// The backend will not take this version of what this node tells of itself: triggers wait for it no longer.
    NotTaken(u64),
    /// The backend's answer to a put. An error may mean that it happened all the same.
    Put {
        /// The entry.
        entry: EntryId,
        /// Which version of it.
        version: u64,
        /// Where to.
        key: Key,
        /// The answer.
        answer: Result<(), String>,
    },
    /// The backend's answer to a removal. It is no error if another revision stood there, or none.
    Removed {
        /// The register.
        place: Place,
        /// The revision that was to go.
        revision: u64,
        /// The answer.
        answer: Result<(), String>,
    },
    /// Somebody on this machine fires.
    Fire {
        /// Client that is answered.
        client: Client,
        /// Request to send.
        request: Request,
    },
    /// Somebody on this machine takes back what they fired.
    TakeBack {
        /// Client that is answered.
        client: Client,
        /// Triggers to take back.
        what: Back,
    },
    /// Those who take have judged what was handed over, and recorded what they took.
    Answers(Vec<Answer>),
    /// What was handed over got no answer: it may have been taken.
    NotHanded(String),
    /// Something became of a trigger that was taken.
    Ran {
        /// The trigger.
        which: TriggerKey,
        /// Where it came from.
        lineage: Lineage,
        /// What became of it.
        outcome: Outcome,
        /// Why.
        why: String,
        /// The run that did its job.
        ran: Option<Ran>,
    },
    /// The turn of a trigger has come that is part of a rolling run.
    Turn(TriggerKey),
    /// It does not come, for this reason; or not now.
    NoTurn(Answer),
    /// It has not come yet; who is before it, in words.
    Waits(TriggerKey, String),
    /// What held triggers back may have changed here.
    Changed,
    /// It is time.
    Tick,
}

/// What is to be taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Back {
    /// All that one request fired.
    Id(Id),
    /// All that is on its way to a node.
    To(Node),
}

/// What became of a register that was handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The trigger.
    pub which: TriggerKey,
    /// The outcome. `Taken` says that the record is on disk.
    pub outcome: Outcome,
    /// Why.
    pub why: String,
    /// The number above which it would have been taken, if it is superseded.
    pub above: Option<u64>,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Sign these together, write each to the outbox in place of its older version, and sync; answered by `Kept` for each.
    Keep(Vec<Draft>),
    /// Put this version of an entry, as it was signed; answered by `Put`. It need not stay there after that time.
    Put {
        /// The entry.
        entry: EntryId,
        /// Which version of it.
        version: u64,
        /// Where to.
        key: Key,
        /// When it has no more use.
        until: Walltime,
    },
    /// Write down these numbers that were given to triggers.
    KeepNumbers(Numbers),
    /// Take an entry off the outbox. Before that, with a number, write this down in place of the last one: a service that
    /// begins has to be told which numbers were given.
    Forget {
        /// The entry.
        entry: EntryId,
        /// The numbers that were given to triggers.
        number: Option<Numbers>,
    },
    /// Give these registers to those who take; answered by `Answers` or `NotHanded`.
    HandOver(Vec<(Place, u64)>),
    /// See when the turn of this trigger comes, which is part of a rolling run of so many at a time; answered by `Turn` or `NoTurn`,
    /// and before that by any number of `Waits`. Asked for again, it has the place that it had.
    Queue(TriggerKey, u32),
    /// Remove a register if this revision still stands there; answered by `Removed`. Wanted of the backend that is reached only:
    /// to another one the revision means something else.
    Remove {
        /// The register.
        place: Place,
        /// Its revision.
        revision: u64,
    },
    /// See which nodes there are, for stored selections; answered by `Nodes` or `NodesIncomplete`, or not at all if the backend does not
    /// show them.
    ReadNodes,
    /// Answer a client.
    Say(Client, Said),
    /// Whoever waits for this trigger hears what became of it.
    Progress {
        /// The request.
        id: Id,
        /// The node.
        target: Node,
        /// What became of it there.
        news: News,
    },
    /// Something for the log that is as it should be.
    Info(String),
    /// Something for the log.
    Note(String),
    /// The same of a register that does not come in, or not from whom it names; to be counted.
    Rejected(String),
}

/// What became of a trigger, as its sender knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// The target told this.
    Status(Outcome, String),
    /// A newer trigger with this id took its place, and stands for it as well unless it had been taken back.
    ReplacedBy(Id),
    /// The target told nothing in time.
    NoAnswer,
}

/// When stored selections are resolved, and what is being sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Resolving {
    /// Since when the backend is reached; nothing if it is not.
    pub(super) reached: Option<Boottime>,
    /// The nodes are not asked for before that.
    pub(super) hold: Boottime,
    /// All nodes, while more selections are due than one step resolves.
    pub(super) nodes: Vec<Inventory>,
    /// Resolved selections, and their triggers, with the versions, that are neither on disk nor in the backend; none while the targets
    /// are being written.
    pub(super) unkept: BTreeMap<EntryId, BTreeMap<EntryId, u64>>,
    /// Selections of which it was logged that too many triggers wait.
    pub(super) waits: BTreeSet<EntryId>,
    /// Selections that an earlier service has sent to more nodes than their entries on disk name.
    pub(super) recovered: BTreeSet<EntryId>,
}

/// Failures that were logged, by name and target of the trigger: its number, its id, its outcome, and whether its way was stopped.
pub type Logged = BTreeMap<EntryId, (u64, Id, Outcome, bool)>;

/// Everything a service remembers; what has to outlive it is in the entries, and in what was logged.
#[derive(Debug, Clone)]
pub struct State {
    /// What this node was set to. May be changed between two steps.
    pub rules: Rules,
    pub(super) is_linked: bool,
    /// The numbers that were given to triggers.
    pub(super) numbers: Numbers,
    /// What of them is written down: the highest that was given before the clock was set back.
    pub(super) kept_before: u64,
    pub(super) entries: BTreeMap<EntryId, OutboxEntry>,
    /// How many of them are results, by who fired.
    pub(super) told: Quotas<Node>,
    /// The version of what this node tells of itself that the backend is to have before any trigger.
    pub(super) first: u64,
    /// The last one that the backend will not take.
    pub(super) not_taken: u64,
    pub(super) own_key: OwnKeyState,
    /// Where a put is under way: one at a time, so that an older one does not overtake. Whether another one waits for its end.
    pub(super) flying: BTreeMap<Key, bool>,
    pub(super) firings: Vec<Firing>,
    pub(super) resolving: Resolving,
    /// The last failure that was logged of each name and target.
    pub logged: Logged,
    /// When what targets have accepted of this node has expired, by target and name.
    pub(super) accepted: BTreeMap<(Node, Name), Walltime>,
    /// How far this node's clock is ahead of another's, in milliseconds, by what was told last.
    pub(super) ahead: Option<i64>,
    pub(super) registers: BTreeMap<Place, Box<Register>>,
    /// The triggers that came too early, and since when they are here.
    pub(super) early: BTreeMap<Place, Since>,
    /// Whose trigger was handed over last.
    pub(super) served: Option<Node>,
    /// The origins of what was told that were stopped at the hop limit, and their ways in words.
    pub(super) stopped: BTreeMap<Id, String>,
    /// What those who take have in hand.
    pub(super) handed: Option<BTreeMap<TriggerKey, Box<Trigger>>>,
    pub(super) wakes: Option<Boottime>,
}

/// An entry, and how far it has come.
#[derive(Debug, Clone)]
pub(super) struct OutboxEntry {
    pub content: Content,
    pub version: u64,
    /// The highest version that is on disk; 0 for none.
    pub kept: u64,
    /// Why this version is not.
    pub not_kept: Option<String>,
    /// The highest version that the backend has confirmed; 0 for none.
    pub confirmed: u64,
    /// Where this version has yet to go.
    pub left: BTreeSet<Key>,
    /// Whether it is a result of a trigger that stood in the backend before one with a lower number.
    pub is_past: bool,
    /// How often in a row a put failed, or was done without an answer of the target's.
    pub tries: u32,
    /// Whether it was numbered once more, above what its target has recorded.
    pub is_renumbered: bool,
    pub due: Option<Boottime>,
    /// How long it matters.
    pub term: Term,
}

/// A client that waits for what its request came to.
#[derive(Debug, Clone)]
pub(super) struct Firing {
    pub client: Client,
    /// The entries that it waits for, and their versions.
    pub waits: BTreeMap<EntryId, u64>,
    pub deadline: Boottime,
    pub said: Said,
}

impl State {
    /// A service that begins, with the entries in its outbox and the numbers that it wrote down.
    pub fn new(
        rules: Rules,
        kept: Numbers,
        entries: impl IntoIterator<Item = Draft>,
        now: &Moment,
    ) -> State {
        let limit = now.wall + rules.skew;
        let mut state = State {
            rules,
            is_linked: false,
            // If it is ahead of the clock, the next number says so.
            numbers: kept,
            kept_before: kept.before,
            entries: BTreeMap::new(),
            told: Quotas::new(OF_A_SENDER),
            first: 0,
            not_taken: 0,
            own_key: OwnKeyState::default(),
            flying: BTreeMap::new(),
            firings: Vec::new(),
            resolving: Resolving::default(),
            logged: Logged::new(),
            accepted: BTreeMap::new(),
            ahead: None,
            registers: BTreeMap::new(),
            early: BTreeMap::new(),
            served: None,
            stopped: BTreeMap::new(),
            handed: None,
            wakes: Some(now.uptime),
        };
        for draft in entries {
            match &draft.content {
                Content::Trigger(trigger)
                    if trigger.number <= limit.millis() || trigger.number > kept.before =>
                {
                    state.numbers.last = state.numbers.last.max(trigger.number);
                }
                Content::Trigger(_) => {}
                Content::Node(inventory) => {
                    state.first = draft.version;
                    state.own_key.last = inventory.order();
                }
                Content::Targets(_) | Content::Selection(_) | Content::Status { .. } => {}
            }
            let mut entry = OutboxEntry::new(draft.content, draft.version, draft.term);
            entry.kept = draft.version;
            if let Some((told, lineage)) = entry.told() {
                state.told.add(&told.sender, size(lineage));
            }
            state.entries.insert(draft.entry, entry);
        }
        state.recover_selections();
        state
    }

    /// Continues from a version that this node has published, as [`Inventory::order`] gives it.
    pub fn continue_from(&mut self, order: u64) {
        self.own_key.last = self.own_key.last.max(order);
    }

    /// The highest number that was given before the clock was set back behind it, in milliseconds; while it is ahead of the clock.
    pub fn set_back(&self, now: Walltime) -> Option<u64> {
        Some(self.numbers.before.max(self.numbers.last))
            .filter(|before| *before > (now + self.rules.skew).millis())
    }

    /// The numbers that were given to triggers.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// How far at least this node's clock is ahead of that of the node that told something last, in milliseconds.
    pub fn ahead(&self) -> Option<i64> {
        self.ahead
    }

    /// What an entry says.
    pub fn entry(&self, id: &EntryId) -> Option<&Content> {
        self.entries.get(id).map(|entry| &entry.content)
    }

    /// Why the newest version of an entry is not on disk, if that was tried in vain.
    pub fn not_kept(&self, id: &EntryId) -> Option<&str> {
        self.entries.get(id)?.not_kept.as_deref()
    }

    /// What the outbox should hold.
    pub fn entries(&self) -> impl Iterator<Item = (&EntryId, &Content)> {
        self.entries.iter().map(|(id, entry)| (id, &entry.content))
    }

    /// How many results the backend does not have yet.
    pub fn untold(&self) -> u64 {
        let results = self.entries.values().filter(|entry| entry.is_told());
        results.filter(|entry| !entry.left.is_empty()).count() as u64
    }

    /// Wants a tick then, or earlier.
    pub(super) fn wake_at(&mut self, at: Boottime) {
        // What this node tells of itself has no end.
        if at.nanos() == u64::MAX {
            return;
        }
        self.wakes = Some(self.wakes.map_or(at, |wakes| wakes.min(at)));
    }
}

impl OutboxEntry {
    pub fn new(content: Content, version: u64, term: Term) -> OutboxEntry {
        OutboxEntry {
            left: content.keys(),
            content,
            version,
            kept: 0,
            not_kept: None,
            confirmed: 0,
            is_past: false,
            tries: 0,
            is_renumbered: false,
            due: None,
            term,
        }
    }

    /// The trigger that it is.
    pub fn trigger(&self) -> Option<&Trigger> {
        match &self.content {
            Content::Trigger(trigger) => Some(trigger),
            _ => None,
        }
    }

    /// The result that it is, and the way of its trigger.
    pub fn told(&self) -> Option<(&TriggerStatus, &Lineage)> {
        match &self.content {
            Content::Status { told, lineage, .. } => Some((told, lineage)),
            _ => None,
        }
    }

    /// Whether it is a result.
    pub fn is_told(&self) -> bool {
        self.told().is_some()
    }
}
