//! Events, actions and state of the steps.

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

/// Client that sends this node a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// The service itself, which gets no answer.
    Service,
    /// Process on this machine, by the number of its connection.
    Connection(u64),
}

/// Trigger that came too early, and the uptime at which it was first seen.
pub(super) type Since = (TriggerKey, Boottime);

/// Event that a step handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The backend is reached. It may be another one than before, so values that it confirmed may
    /// be gone. All values for this node are shown again after this, and all results.
    Reached,
    /// The backend cannot be reached. Every put and every removal under way has been answered.
    Lost,
    /// Values for this node were seen in the backend.
    Seen(Vec<Sight>),
    /// Value for this node that is no longer in the backend.
    Gone(Place),
    /// Status that a target published, with a verified signature.
    Heard(TriggerStatus),
    /// Result of writing an entry to the outbox.
    Kept {
        /// Id of the entry.
        entry: EntryId,
        /// Version that was written.
        version: u64,
        /// Whether the version is on disk, or why not.
        kept: Result<(), String>,
    },
    /// Inventory that this node is to publish. It is ignored if the published one says the same.
    Inventory(Inventory),
    /// This node's own key, where it publishes its inventory, has a new value or was removed.
    OwnKey {
        /// Revision of the write.
        revision: u64,
        /// Value at the key.
        found: OwnKey,
    },
    /// Everything at this node's own key was shown after [`Event::Reached`], or the backend does
    /// not show it.
    OwnKeySeen {
        /// Whether the backend showed it.
        is_shown: bool,
    },
    /// The watch of this node's own key was lost; the link keeps trying to restore it.
    OwnKeyLost,
    /// Regular beat, about every half minute: an old signature is renewed.
    Beat,
    /// All nodes that the backend has shown, and those that still count although the backend has
    /// lost their inventories.
    Nodes(Vec<Inventory>),
    /// The backend has shown its nodes, but after a loss of data others may still return during
    /// this time.
    NodesIncomplete(Span),
    /// Version of this node's inventory that the backend rejects: triggers no longer wait for it.
    NotTaken(u64),
    /// The backend's answer to a put. After an error, the value may have been written all the same.
    Put {
        /// Id of the entry.
        entry: EntryId,
        /// Version that was put.
        version: u64,
        /// Key where it was put.
        key: Key,
        /// Answer of the backend.
        answer: Result<(), String>,
    },
    /// The backend's answer to a removal. It is not an error if the key had another revision, or no
    /// value.
    Removed {
        /// Place of the value.
        place: Place,
        /// Revision that was to be removed.
        revision: u64,
        /// Answer of the backend.
        answer: Result<(), String>,
    },
    /// A client sends triggers.
    Fire {
        /// Client that is answered.
        client: Client,
        /// Request to send.
        request: Request,
    },
    /// A client cancels triggers that were sent from here.
    TakeBack {
        /// Client that is answered.
        client: Client,
        /// Triggers to cancel.
        what: Back,
    },
    /// Answers of the executor: it has judged these triggers, and recorded those that it accepted.
    Answers(Vec<Answer>),
    /// The executor did not answer, for this reason: it may have accepted the triggers all the
    /// same.
    NotHanded(String),
    /// New outcome of a trigger that was accepted.
    Ran {
        /// Key of the trigger.
        which: TriggerKey,
        /// Lineage of the trigger.
        lineage: Lineage,
        /// New outcome.
        outcome: Outcome,
        /// Reason for the outcome.
        why: String,
        /// Run that did the trigger's job.
        ran: Option<Ran>,
    },
    /// The turn of this trigger, which is part of a rolling run, has come.
    Turn(TriggerKey),
    /// The trigger of a rolling run does not get its turn, or not now; the answer has the reason.
    NoTurn(Answer),
    /// The trigger's turn has not come yet; in words, which nodes are before it.
    Waits(TriggerKey, String),
    /// A reason for holding triggers may have changed here.
    Changed,
    /// The time that [`super::wakes`] gave has come.
    Tick,
}

/// Triggers to cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Back {
    /// All triggers of one request.
    Id(Id),
    /// All unanswered triggers for a node.
    To(Node),
}

/// Judgement of a trigger that was sent to the executor, or that waited for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Key of the trigger.
    pub which: TriggerKey,
    /// Outcome of the trigger. `Taken` means that its record is on disk.
    pub outcome: Outcome,
    /// Reason for the outcome.
    pub why: String,
    /// Number above which the trigger would have been accepted, if it is superseded.
    pub above: Option<u64>,
}

/// Action that the driver performs. The actions of a step are performed in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Sign these together, write each to the outbox in place of its older version, and sync;
    /// answered with `Kept` for each.
    Keep(Vec<Draft>),
    /// Put this version of an entry; answered with `Put`. The backend need not keep it after
    /// `until`.
    Put {
        /// Id of the entry.
        entry: EntryId,
        /// Version to put.
        version: u64,
        /// Key where the entry is put.
        key: Key,
        /// Time after which the value is not needed.
        until: Walltime,
    },
    /// Store these numbers of triggers on disk.
    KeepNumbers(Numbers),
    /// Remove an entry from the outbox. If numbers are given, store them first: a service that
    /// restarts must know which numbers were used.
    Forget {
        /// Id of the entry.
        entry: EntryId,
        /// Numbers that were given to triggers.
        number: Option<Numbers>,
    },
    /// Send the triggers at these places, with these revisions, to the executor; answered with
    /// `Answers` or `NotHanded`.
    HandOver(Vec<(Place, u64)>),
    /// Queue this trigger, part of a rolling run on this many nodes in parallel, for its turn;
    /// answered with `Turn` or `NoTurn`, and before that with any number of `Waits`. A trigger that
    /// is queued again keeps its position.
    Queue(TriggerKey, u32),
    /// Remove a value if it still has this revision; answered with `Removed`. This is for the
    /// connected backend only: in another one the revision means something else.
    Remove {
        /// Place of the value.
        place: Place,
        /// Revision of the value.
        revision: u64,
    },
    /// Read the nodes from the backend, for stored selections; answered with `Nodes` or
    /// `NodesIncomplete`, or not at all if the backend does not show them.
    ReadNodes,
    /// Answer a client.
    Say(Client, Said),
    /// Send the progress of a trigger to the clients that wait for it.
    Progress {
        /// Id of the request.
        id: Id,
        /// Target of the trigger.
        target: Node,
        /// Progress at this target.
        news: News,
    },
    /// Log this at level info.
    Info(String),
    /// Log this as a warning.
    Note(String),
    /// Log this as a warning about a value that is not accepted, or was not written by the node
    /// that it names, and count it.
    Rejected(String),
}

/// Progress of a trigger, as its sender knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// Outcome that the target published, and its reason.
    Status(Outcome, String),
    /// A newer trigger with this id replaced it, and stands for it as well, unless it had been
    /// cancelled.
    ReplacedBy(Id),
    /// The target published nothing before the trigger expired.
    NoAnswer,
}

/// Schedule for resolving stored selections, and progress of those that are being sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Resolving {
    /// Uptime at which the backend was reached; `None` if it is not reached.
    pub(super) reached: Option<Boottime>,
    /// Uptime before which the nodes are not read.
    pub(super) hold: Boottime,
    /// All nodes, while more selections are due than one step resolves.
    pub(super) nodes: Vec<Inventory>,
    /// Resolved selections, each with those of its triggers, and their versions, that are neither
    /// on disk nor in the backend. The triggers are empty while the targets are being written.
    pub(super) unkept: BTreeMap<EntryId, BTreeMap<EntryId, u64>>,
    /// Selections for which it was logged that too many triggers wait.
    pub(super) waits: BTreeSet<EntryId>,
    /// Selections that an earlier service has sent to more nodes than their entries on disk name.
    pub(super) recovered: BTreeSet<EntryId>,
}

/// Failures that were logged, by target and name of the trigger: its number, its id, its outcome,
/// and whether an origin was stopped at the hop limit.
pub type Logged = BTreeMap<EntryId, (u64, Id, Outcome, bool)>;

/// State of a service. The entries and the logged failures are on disk as well, and outlive it.
#[derive(Debug, Clone)]
pub struct State {
    /// Rules from this node's settings. They may change between two steps.
    pub rules: Rules,
    pub(super) is_linked: bool,
    /// Numbers that were given to triggers.
    pub(super) numbers: Numbers,
    /// `numbers.before` as it was last stored: the highest number given before the clock was set
    /// back.
    pub(super) kept_before: u64,
    pub(super) entries: BTreeMap<EntryId, OutboxEntry>,
    /// Number and bytes of the results among the entries, by sender of the trigger.
    pub(super) told: Quotas<Node>,
    /// Version of this node's inventory that the backend must have before any trigger.
    pub(super) first: u64,
    /// Last version of this node's inventory that the backend rejected.
    pub(super) not_taken: u64,
    pub(super) own_key: OwnKeyState,
    /// Keys with a put under way, and whether another put waits for its end. There is one put per
    /// key at a time, so that an older one cannot overtake a newer one.
    pub(super) flying: BTreeMap<Key, bool>,
    pub(super) firings: Vec<Firing>,
    pub(super) resolving: Resolving,
    /// Last failure that was logged for each name and target.
    pub logged: Logged,
    /// Expiry times of the triggers of this node that targets have accepted, by target and name.
    pub(super) accepted: BTreeMap<(Node, Name), Walltime>,
    /// Time by which this node's clock is at least ahead of the clock of the target that published
    /// last, in milliseconds.
    pub(super) ahead: Option<i64>,
    pub(super) registers: BTreeMap<Place, Box<Register>>,
    /// Triggers that came too early, and the uptime at which each was first seen.
    pub(super) early: BTreeMap<Place, Since>,
    /// Sender of the last trigger that was sent to the executor.
    pub(super) served: Option<Node>,
    /// Origins of published statuses that were stopped at the hop limit, and their ways in words.
    pub(super) stopped: BTreeMap<Id, String>,
    /// Triggers that the executor has not answered yet; `None` if it has answered all.
    pub(super) handed: Option<BTreeMap<TriggerKey, Box<Trigger>>>,
    pub(super) wakes: Option<Boottime>,
}

/// Entry of the outbox, and its progress.
#[derive(Debug, Clone)]
pub(super) struct OutboxEntry {
    pub content: Content,
    pub version: u64,
    /// Highest version that is on disk; 0 for none.
    pub kept: u64,
    /// Why this version is not on disk.
    pub not_kept: Option<String>,
    /// Highest version that the backend has confirmed; 0 for none.
    pub confirmed: u64,
    /// Keys where this version is still to be put.
    pub left: BTreeSet<Key>,
    /// Whether the entry is a result of a trigger that was in the backend before one with a lower
    /// number.
    pub is_past: bool,
    /// Number of consecutive puts that failed, or that the target has not answered.
    pub tries: u32,
    /// Whether the trigger was sent again with a number above the one that its target has recorded.
    pub is_renumbered: bool,
    pub due: Option<Boottime>,
    /// Time for which the entry matters.
    pub term: Term,
}

/// Client that waits for the result of its request.
#[derive(Debug, Clone)]
pub(super) struct Firing {
    pub client: Client,
    /// Entries that the client waits for, and their versions.
    pub waits: BTreeMap<EntryId, u64>,
    pub deadline: Boottime,
    pub said: Said,
}

impl State {
    /// State of a service that starts with the entries in its outbox and the numbers that it
    /// stored.
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
            // If the last number is ahead of the clock, the next number reports it.
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

    /// Continues from a version that this node has published, as given by [`Inventory::order`].
    pub fn continue_from(&mut self, order: u64) {
        self.own_key.last = self.own_key.last.max(order);
    }

    /// Highest number that was given before the clock was set back, in milliseconds after 1970, as
    /// long as it is ahead of the clock.
    pub fn set_back(&self, now: Walltime) -> Option<u64> {
        Some(self.numbers.before.max(self.numbers.last))
            .filter(|before| *before > (now + self.rules.skew).millis())
    }

    /// Numbers that were given to triggers.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// Time by which this node's clock is at least ahead of the clock of the target that published
    /// last, in milliseconds.
    pub fn ahead(&self) -> Option<i64> {
        self.ahead
    }

    /// Content of an entry.
    pub fn entry(&self, id: &EntryId) -> Option<&Content> {
        self.entries.get(id).map(|entry| &entry.content)
    }

    /// Error of the last attempt to store the newest version of an entry on disk.
    pub fn not_kept(&self, id: &EntryId) -> Option<&str> {
        self.entries.get(id)?.not_kept.as_deref()
    }

    /// Entries that the outbox should hold.
    pub fn entries(&self) -> impl Iterator<Item = (&EntryId, &Content)> {
        self.entries.iter().map(|(id, entry)| (id, &entry.content))
    }

    /// Number of results that the backend does not have yet.
    pub fn untold(&self) -> u64 {
        let results = self.entries.values().filter(|entry| entry.is_told());
        results.filter(|entry| !entry.left.is_empty()).count() as u64
    }

    /// Schedules a tick at this uptime, unless an earlier one is scheduled.
    pub(super) fn wake_at(&mut self, at: Boottime) {
        // This node's inventory never expires.
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

    /// Trigger, if the entry is one.
    pub fn trigger(&self) -> Option<&Trigger> {
        match &self.content {
            Content::Trigger(trigger) => Some(trigger),
            _ => None,
        }
    }

    /// Status and lineage of a trigger, if the entry is a result.
    pub fn told(&self) -> Option<(&TriggerStatus, &Lineage)> {
        match &self.content {
            Content::Status { told, lineage, .. } => Some((told, lineage)),
            _ => None,
        }
    }

    /// Whether the entry is a result.
    pub fn is_told(&self) -> bool {
        self.told().is_some()
    }
}
