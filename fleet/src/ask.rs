//! The protocol on the trigger socket between a command and this node's service.
//!
//! A connection carries one request and a stream of answers, of which [`Answer::End`] is the last.
//! Each message begins with [`HEAD`] bytes: the protocol version and the length of the rest, which
//! is checked before a byte of the rest is read. A stream that ends without [`Answer::End`] is
//! incomplete.
//!
//! | request | answers |
//! | --- | --- |
//! | [`Question::Fire`], [`Question::TakeBack`] | each target once ([`Answer::Delivered`], [`Answer::Kept`] or [`Answer::Failed`]), then [`Answer::Said`]; if the command waits, [`Answer::Progress`] until each target has a final outcome |
//! | [`Question::HowAreYou`] | [`Answer::How`] |
//! | [`Question::Nodes`] | any number of [`Answer::Node`], [`Answer::Ignored`] and [`Answer::Missing`], after [`Answer::Stored`] if the backend does not show the nodes; or [`Answer::NotSeen`] |
//! | [`Question::Story`] | any number of [`Answer::OnTheWay`] and [`Answer::Entry`], and [`Answer::Incomplete`] once if older entries were not read; or [`Answer::NotSeen`] |
//! | [`Question::Slot`] | [`Answer::Waits`] or [`Answer::Away`] at each change, until the run has a slot |
//! | [`Question::Locks`] | any number of [`Answer::Lock`] and [`Answer::IgnoredToken`]; or [`Answer::NotSeen`] |
//! | [`Question::Resets`] | any number of [`Answer::Reset`]; or [`Answer::NotSeen`] |
//! | [`Question::Slots`] | any number of [`Answer::Slot`]; or [`Answer::NotSeen`] |
//! | [`Question::Tell`], [`Question::Ended`], [`Question::Forget`], [`Question::Release`], [`Question::Move`], [`Question::Reset`] | only [`Answer::End`], once it is done; or [`Answer::NotSeen`] |
//! | any | [`Answer::Refused`] instead of all others |

use std::collections::BTreeSet;

use again_base::model::Identity;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::policy::fire::Request;
use crate::settings::Backend;
use crate::step::model::{Back, News, Said, SelectionState, StoredShown};
use crate::wire::body::Content;
use crate::wire::inventory::Inventory;
use crate::wire::lock::{Lock, Reset};
use crate::wire::name::{Id, Name, Namespace, Node};
use crate::wire::outcome::{Entry, Outcome};
use crate::wire::slot::{MOST_SLOTS, MOST_WHY, Slot};
use crate::wire::trigger::{MOST_DELTA, MOST_TTL, Trigger, check_rolling};
use crate::wire::{Malformed, outcome};

/// Length of the head of a request or an answer, in bytes.
pub const HEAD: usize = 8;
/// Largest number of targets of a request: the outbox has room for no more triggers.
pub const MOST_TARGETS: usize = 20_000;
/// Largest length of the rest of a request, in bytes: that of [`MOST_TARGETS`] targets with the
/// longest names.
pub const LONGEST_QUESTION: usize = 6 << 20;
/// Largest length of the rest of an answer, in bytes: that of the largest inventory as JSON.
pub const LONGEST_ANSWER: usize = 192 << 10;
/// Longest sentence of an answer, in bytes. A sentence may name all nodes of several loops.
const MOST_WORDS: usize = 16 << 10;

const ASK: &[u8; 4] = b"AGQ1";
const SAY: &[u8; 4] = b"AGS1";

/// A request of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Send a trigger.
    Fire {
        /// The trigger to send.
        request: Request,
        /// Whether to report the outcomes.
        wait: bool,
    },
    /// Cancel triggers that their targets have not accepted yet.
    TakeBack {
        /// The triggers to cancel.
        what: Back,
        /// Whether to report the outcomes.
        wait: bool,
    },
    /// Report the state of the service.
    HowAreYou,
    /// Report all nodes and their inventories.
    Nodes,
    /// Publish this inventory of the node. The service sets the time and the fields that it knows
    /// itself.
    Tell(Box<Inventory>),
    /// Publish the outcome of a run: changed, unchanged, failed or unknown.
    Ended(Outcome),
    /// Remove the inventory of a decommissioned node.
    Forget(Node),
    /// Report the story of an origin, or of all origins in the backend.
    Story(Option<Id>),
    /// Wait for a slot for a run.
    Slot(Wish),
    /// Report the nodes that hold or wait for a slot, in one group or in all.
    Slots(Option<Name>),
    /// Remove a node from the queue of a group.
    Release {
        /// Name of the group.
        group: Name,
        /// Node to remove.
        node: Node,
    },
    /// Report the holders of all locks and their candidates; if `true`, only the locks for which
    /// this node is a candidate, from this node's own state.
    Locks(bool),
    /// Move a lock: the lock with its current token and the new holder.
    Move(Box<Lock>),
    /// Report the resets of this lock that were written by nodes which this node lists as
    /// operators.
    Resets(Name),
    /// Reset the tokens of a lock that no node holds.
    Reset(Box<Reset>),
}

/// A request for a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Group of the slot.
    pub group: Name,
    /// Number of slots of the group, according to this node.
    pub limit: u32,
    /// The run, which holds the slot until it ends.
    pub run: Identity,
    /// Description of the run, in words.
    pub why: String,
}

/// An answer of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The backend has the trigger for this node.
    Delivered(Node),
    /// The outbox has the trigger for this node.
    Kept(Node),
    /// The trigger for this node could neither be sent nor stored, or may not be sent; the reason.
    Failed(Node, String),
    /// Path of an origin that had made too many hops and was left out.
    LeftOut(String),
    /// Summary after the results of all targets.
    Said(Summary),
    /// News of a trigger on a node. After a newer trigger has replaced it, the news is of that one.
    Progress {
        /// Id of the trigger.
        id: Id,
        /// Target of the trigger.
        target: Node,
        /// The news.
        news: News,
    },
    /// State of the service.
    How(Box<How>),
    /// Inventory of a node.
    Node(Box<Inventory>),
    /// The backend does not show the nodes. The nodes of the last inventory follow; whether they
    /// are connected is not known.
    Stored {
        /// Time of the last inventory, in milliseconds of the wall clock since 1970.
        at: u64,
        /// Reason why there is no newer one.
        why: String,
    },
    /// A node whose inventory the backend has lost; its earlier inventory still counts.
    Missing {
        /// Certname of the node.
        node: Node,
        /// Time when the loss was noticed, in milliseconds of the wall clock since 1970.
        since: u64,
    },
    /// A node whose inventory is ignored; the log says why.
    Ignored(Node),
    /// Published status of a trigger.
    Entry(Box<Entry>),
    /// A trigger of this node whose target has not published a final outcome yet, with one of its
    /// origins.
    OnTheWay(Box<Trigger>),
    /// The run waits for a slot; the reason in words, empty while the queue position is not known.
    Waits(String),
    /// The run waits for a slot, and the service does not know the queue position; the reason.
    Away(String),
    /// Entry of a node in a slot queue, and the revision that determines its position.
    Slot(Box<Slot>, u64),
    /// A lock with its holder; or a lock without a token, and the reason why the holder is not
    /// certain.
    Lock(Box<Lock>, String),
    /// Older values were not read; the part that was read, in words.
    Incomplete(String),
    /// A reset that an operator has written.
    Reset(Box<Reset>),
    /// This node ignores the token that a candidate publishes for a lock.
    IgnoredToken {
        /// Name of the lock.
        lock: Name,
        /// Certname of the candidate.
        node: Node,
        /// The ignored token.
        token: u64,
    },
    /// The backend did not show the requested values; the reason.
    NotSeen(String),
    /// The service does not answer this request; the reason.
    Refused(String),
    /// End of the answers.
    End,
}

/// Summary for all targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Type of the backend.
    pub backend: Backend,
    /// Reason why the backend cannot be reached; `None` if it can.
    pub away: Option<String>,
    /// End of the time in which stored triggers are sent, in milliseconds of the wall clock since
    /// 1970.
    pub until: u64,
    /// State of the request's selection; `None` if it has none to store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<SelectionState>,
}

/// State of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct How {
    /// Version of the service.
    pub version: String,
    /// Certname of this node, with which it signs.
    pub node: Node,
    /// Name of the fleet.
    pub namespace: Namespace,
    /// Start time, in milliseconds of the wall clock since 1970.
    pub began: u64,
    /// Connection to the backend.
    pub link: Link,
    /// Failures of the service's work while the backend is reachable.
    pub failures: Vec<Failure>,
    /// Contents of the outbox.
    pub outbox: Waiting,
    /// Reason why the executor did not answer the last request; `None` if it did.
    pub executor: Option<String>,
    /// Number of values rejected since the start: triggers and results that are malformed, or whose
    /// sender this node does not accept.
    pub rejected: u64,
    /// Slots that ended during runs of this node, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<String>,
    /// Sentences about faulty tokens of the locks for which this node is a candidate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// Least difference by which this node's clock is ahead of the clock of the node that published
    /// last, in milliseconds.
    pub ahead: Option<i64>,
    /// Highest number of a trigger from before the clock was set back, in milliseconds of the wall
    /// clock since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_back: Option<u64>,
    /// The oldest stored selections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selections: Vec<StoredShown>,
    /// Sentences about targets that have accepted almost as many names of this node as they accept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// A failure of the service's work, until the same work succeeds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Failure {
    /// Reason of the failure.
    pub reason: Reason,
    /// Sentence about the work that fails, and why.
    pub what: String,
}

impl Failure {
    /// Copy with a sentence that an answer may hold.
    pub fn shown(&self) -> Failure {
        Failure {
            reason: self.reason,
            what: words(&self.what),
        }
    }
}

/// Reasons of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// The backend does not allow it to this node.
    Rights,
    /// The backend is out of space.
    Room,
    /// The backend has no room for events, which matter less than triggers.
    Events,
    /// The value is larger than the backend stores.
    Size,
    /// The numbers for `again metrics` cannot be written.
    Metrics,
}

/// State of the connection to the backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Type of the backend.
    pub backend: Backend,
    /// Whether the backend is reachable.
    pub is_up: bool,
    /// Time of the last change of `is_up`, in milliseconds of the wall clock since 1970.
    pub since: u64,
    /// Reason why the backend is not reachable; may be empty.
    pub why: String,
}

/// Contents of the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Number of triggers whose targets have not published a status yet.
    pub triggers: u64,
    /// Number of selections to resolve when the backend shows all nodes.
    pub selections: u64,
    /// Number of results of this node.
    pub results: u64,
    /// Time of the oldest trigger, in milliseconds of the wall clock since 1970.
    pub oldest: Option<u64>,
    /// Reason why the outbox cannot be written; `None` if it can.
    pub not_kept: Option<String>,
}

/// Answers to a request that sends or cancels triggers, in the order of sending.
pub fn said(said: &Said, backend: Backend, away: Option<&str>) -> Vec<Answer> {
    let delivered = said.delivered.iter().cloned().map(Answer::Delivered);
    let kept = said.kept.iter().cloned().map(Answer::Kept);
    let failed = said
        .failed
        .iter()
        .map(|(node, why)| Answer::Failed(node.clone(), words(why)));
    // An origin exceeds the hop limit in the same way for each target.
    let mut ways: Vec<String> = said
        .left_out
        .iter()
        .map(|way| words(&way.to_string()))
        .collect();
    ways.sort();
    ways.dedup();
    let summary = Summary {
        backend,
        away: away.map(words),
        until: said.until.millis(),
        selection: said.selection.clone().map(|state| match state {
            SelectionState::NotStored(why) => SelectionState::NotStored(words(&why)),
            other => other,
        }),
    };
    let left_out = ways.into_iter().map(Answer::LeftOut);
    let named = delivered.chain(kept).chain(failed).chain(left_out);
    named.chain([Answer::Said(summary)]).collect()
}

/// A sentence for an answer: cut at the largest length, control characters replaced.
pub fn words(text: &str) -> String {
    outcome::cut(text, MOST_WORDS)
}

/// Encodes a request.
///
/// # Errors
/// A value is out of its range.
pub fn ask(question: &Question) -> Result<Vec<u8>, Malformed> {
    question.check()?;
    write(ASK, question, LONGEST_QUESTION)
}

/// Length of the rest of a request, from its head.
///
/// # Errors
/// The head is not that of a request, or the length is too large.
pub fn length_of_question(head: &[u8]) -> Result<usize, Malformed> {
    length(ASK, head, LONGEST_QUESTION)
}

/// Decodes the rest of a request.
///
/// # Errors
/// The request is malformed, or a value is out of its range.
pub fn question(rest: &[u8]) -> Result<Question, Malformed> {
    let question: Question = read("question", rest, LONGEST_QUESTION)?;
    question.check()?;
    Ok(question)
}

/// Decodes a request that a command has left on disk, as [`ask`] encoded it.
///
/// # Errors
/// The request does not send triggers, is malformed, or has a value out of its range.
pub fn read_fire(bytes: &[u8]) -> Result<Request, Malformed> {
    let short = || Malformed::new("it is cut short");
    let (head, rest) = bytes.split_at_checked(HEAD).ok_or_else(short)?;
    if length_of_question(head)? != rest.len() {
        return Err(short());
    }
    match question(rest)? {
        Question::Fire { request, .. } => Ok(request),
        _ => Err(Malformed::new("it sends no triggers")),
    }
}

/// Encodes an answer.
///
/// # Errors
/// A value is out of its range: a sentence was not made with [`words`].
pub fn say(answer: &Answer) -> Result<Vec<u8>, Malformed> {
    answer.check()?;
    write(SAY, answer, LONGEST_ANSWER)
}

/// Length of the rest of an answer, from its head.
///
/// # Errors
/// The head is not that of an answer, or the length is too large.
pub fn length_of_answer(head: &[u8]) -> Result<usize, Malformed> {
    length(SAY, head, LONGEST_ANSWER)
}

/// Decodes the rest of an answer.
///
/// # Errors
/// The answer is malformed, or a value is out of its range.
pub fn answer(rest: &[u8]) -> Result<Answer, Malformed> {
    let answer: Answer = read("answer", rest, LONGEST_ANSWER)?;
    answer.check()?;
    Ok(answer)
}

impl Question {
    /// Whether only root may make the request, and not the group that may send triggers.
    pub fn is_roots(&self) -> bool {
        matches!(
            self,
            Question::Tell(_)
                | Question::Ended(_)
                | Question::Forget(_)
                | Question::Slot(_)
                | Question::Release { .. }
                | Question::Move(_)
                | Question::Resets(_)
                | Question::Reset(_)
        )
    }

    fn check(&self) -> Result<(), Malformed> {
        let request = match self {
            Question::Fire { request, .. } => request,
            Question::Tell(told) => return told.check(),
            Question::Slot(wish) => return wish.check(),
            Question::Ended(outcome) if !outcome.ends_a_run() => {
                return Err(Malformed::new(format!("no run ends as {outcome}")));
            }
            _ => return Ok(()),
        };
        let count = request.targets.len();
        if let Some(criteria) = &request.selection {
            criteria.check()?;
        }
        let is_open = request.is_open && request.selection.is_some();
        if !(usize::from(!is_open)..=MOST_TARGETS).contains(&count) {
            let why = format!("{count} targets: 1 to {MOST_TARGETS} are allowed");
            return Err(Malformed::new(why));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = request.targets.iter().find(|target| !seen.insert(*target)) {
            return Err(Malformed::new(format!("the target {twice} is named twice")));
        }
        let bound = |what: &str, is: u64, least: u64, most: u64| {
            if (least..=most).contains(&is) {
                return Ok(());
            }
            let why = format!("a {what} of {is} milliseconds: {least} to {most} are allowed");
            Err(Malformed::new(why))
        };
        bound("delta", request.delta.millis(), 0, MOST_DELTA)?;
        bound("ttl", request.ttl.millis(), 1, MOST_TTL)?;
        check_rolling(request.parallel, request.stop_after)?;
        if request.run.0.is_empty() {
            return Ok(());
        }
        request.run.check()
    }
}

impl Wish {
    fn check(&self) -> Result<(), Malformed> {
        if self.why.len() > MOST_WHY || !(1..=MOST_SLOTS).contains(&self.limit) || self.run.pid <= 1
        {
            return Err(Malformed::new("nobody can wait for such a slot"));
        }
        sentence(&self.why)
    }
}

impl Answer {
    fn check(&self) -> Result<(), Malformed> {
        self.sentences().into_iter().try_for_each(sentence)
    }

    /// All text in the answer that its type does not check.
    fn sentences(&self) -> Vec<&str> {
        match self {
            Answer::Failed(_, why)
            | Answer::LeftOut(why)
            | Answer::Refused(why)
            | Answer::Waits(why)
            | Answer::Away(why)
            | Answer::Incomplete(why)
            | Answer::Stored { why, .. }
            | Answer::NotSeen(why) => vec![why],
            Answer::Said(summary) => {
                let not_stored = match &summary.selection {
                    Some(SelectionState::NotStored(why)) => Some(why),
                    _ => None,
                };
                [summary.away.as_ref(), not_stored]
                    .into_iter()
                    .flatten()
                    .map(String::as_str)
                    .collect()
            }
            Answer::Progress {
                news: News::Status(_, why),
                ..
            } => vec![why],
            Answer::Slot(slot, _) => vec![&slot.why],
            Answer::Lock(_, why) => vec![why],
            Answer::Entry(entry) => {
                let ways = entry.told.stopped.iter().map(|one| &*one.way);
                ways.chain([&*entry.told.why]).collect()
            }
            Answer::How(how) => {
                let some = [&how.executor, &how.outbox.not_kept].into_iter().flatten();
                let all = some
                    .chain([&how.link.why, &how.version])
                    .chain(how.failures.iter().map(|failure| &failure.what))
                    .chain(how.selections.iter().map(|one| &one.selects))
                    .chain(&how.slots);
                all.map(String::as_str).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn sentence(text: &str) -> Result<(), Malformed> {
    if text.len() > MOST_WORDS {
        let length = text.len();
        let why = format!("a sentence of {length} bytes is too long: {MOST_WORDS} are allowed");
        return Err(Malformed::new(why));
    }
    if text.chars().any(char::is_control) {
        return Err(Malformed::new("a sentence has control characters"));
    }
    Ok(())
}

fn write(magic: &[u8; 4], content: &impl Serialize, most: usize) -> Result<Vec<u8>, Malformed> {
    let body = serde_json::to_vec(content)
        .map_err(|e| Malformed::new(format!("it cannot be written: {e}")))?;
    bounded(body.len(), most)?;
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    Ok([&magic[..], &length.to_be_bytes(), &body].concat())
}

fn length(magic: &[u8; 4], head: &[u8], most: usize) -> Result<usize, Malformed> {
    match head.split_first_chunk::<4>() {
        Some((is, [a, b, c, d])) if is == magic => {
            let length = u32::from_be_bytes([*a, *b, *c, *d]);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            bounded(length, most).map(|()| length)
        }
        _ => Err(crate::wire::other_version(
            magic,
            head,
            "the language of 'again-fleet trigger'",
        )),
    }
}

fn read<T: DeserializeOwned>(what: &str, rest: &[u8], most: usize) -> Result<T, Malformed> {
    bounded(rest.len(), most)?;
    serde_json::from_slice(rest).map_err(|e| {
        let why = crate::wire::shown(&e.to_string());
        Malformed::new(format!("that is no {what} of 'again-fleet trigger': {why}"))
    })
}

fn bounded(length: usize, most: usize) -> Result<(), Malformed> {
    if length <= most {
        return Ok(());
    }
    Err(Malformed::new(format!(
        "{length} bytes are too many: {most} are allowed"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::model::{Span, Walltime};
    use proptest::prelude::*;

    use crate::policy::lineage::TooFar;
    use crate::policy::select::Criteria;
    use crate::wire::lineage::{Cause, Lineage, MOST_HOPS, Origin};
    use crate::wire::name::Name;

    fn node(name: &str) -> Node {
        name.parse().expect("a certname")
    }

    fn request() -> Request {
        Request {
            id: Id::from_bits(7),
            targets: vec![node("lb1"), node("lb2")],
            name: "again".parse().expect("a name"),
            cause: Cause::Refresh,
            on_behalf: None,
            run: Lineage(vec![Origin {
                id: Id::from_bits(1),
                cause: Cause::Person,
                path: vec![node("db1")],
            }]),
            delta: Span::from_secs(2),
            ttl: Span::from_secs(3600),
            parallel: 0,
            stop_after: 0,
            selection: None,
            is_open: false,
        }
    }

    fn fire(change: impl FnOnce(&mut Request)) -> Question {
        let mut request = request();
        change(&mut request);
        Question::Fire {
            request,
            wait: true,
        }
    }

    fn wish() -> Wish {
        Wish {
            group: "puppetserver".parse().expect("a name"),
            limit: 8,
            run: Identity { pid: 7, start: 9 },
            why: "process 7".to_owned(),
        }
    }

    fn reset() -> Reset {
        Reset {
            lock: wish().group,
            node: node("lb1"),
            token: 7,
            number: 5,
            before: Vec::new(),
        }
    }

    fn failure(what: &str) -> Failure {
        Failure {
            reason: Reason::Rights,
            what: what.to_owned(),
        }
    }

    fn how() -> How {
        How {
            version: "0.1.0".to_owned(),
            node: node("web1"),
            namespace: "default".parse().expect("a namespace"),
            began: 1,
            link: Link {
                backend: Backend::Etcd,
                is_up: false,
                since: 2,
                why: "connection refused".to_owned(),
            },
            failures: vec![failure("writing below to/")],
            outbox: Waiting {
                triggers: 3,
                selections: 1,
                results: 4,
                oldest: Some(5),
                not_kept: Some("no space left".to_owned()),
            },
            executor: Some("it did not answer".to_owned()),
            rejected: 8,
            slots: Vec::new(),
            tokens: Vec::new(),
            ahead: Some(-6),
            set_back: None,
            selections: Vec::new(),
            names: Vec::new(),
        }
    }

    fn inventory() -> Inventory {
        Inventory {
            node: node("lb1"),
            at: 1,
            serial: 1,
            facts: [("role".to_owned(), "\"\\".repeat(256))].into(),
            classes: (0..85)
                .map(|n| format!("{n:0>512}").replace('0', "\""))
                .collect(),
            environment: "production".to_owned(),
            version: "0.1.0".to_owned(),
            puppet: "7.23.0".to_owned(),
            running: None,
            last: None,
            ended: None,
            pending: 0,
            disabled: false,
            cap: None,
            tokens: std::collections::BTreeMap::new(),
            resets: std::collections::BTreeMap::new(),
        }
    }

    fn progress(news: News) -> Answer {
        Answer::Progress {
            id: Id::from_bits(7),
            target: node("lb1"),
            news,
        }
    }

    /// One of each.
    fn answers() -> Vec<Answer> {
        vec![
            Answer::Delivered(node("lb1")),
            Answer::Kept(node("lb1")),
            Answer::Failed(node("lb1"), "no".to_owned()),
            Answer::LeftOut("over 10 hops: a -> a ...".to_owned()),
            Answer::Said(Summary {
                backend: Backend::Etcd,
                away: Some("silent".to_owned()),
                until: 9,
                selection: Some(SelectionState::NotStored("full".to_owned())),
            }),
            progress(News::Status(Outcome::Changed, "in 3 s".to_owned())),
            progress(News::ReplacedBy(Id::from_bits(8))),
            progress(News::NoAnswer),
            Answer::How(Box::new(how())),
            Answer::Refused("noop".to_owned()),
            Answer::End,
            Answer::Node(Box::new(inventory())),
            Answer::Ignored(node("lb1")),
            Answer::Stored {
                at: 7,
                why: "etcd cannot be reached".to_owned(),
            },
            Answer::Missing {
                node: node("lb1"),
                since: 7,
            },
            Answer::Reset(Box::new(reset())),
            Answer::IgnoredToken {
                lock: wish().group,
                node: node("lb1"),
                token: 7,
            },
            Answer::NotSeen("etcd cannot be reached".to_owned()),
            Answer::Waits(", which has 3".to_owned()),
            Answer::Away("the backend is not there".to_owned()),
            Answer::Incomplete("only the newest 5 values".to_owned()),
            Answer::Slot(Box::new(crate::wire::slot::tests::slot("lb1", 5, 8)), 6),
        ]
    }

    /// Reads a question as the service does, from bytes.
    fn asked(bytes: &[u8]) -> Result<Question, Malformed> {
        let (head, rest) = bytes.split_at(HEAD.min(bytes.len()));
        let length = length_of_question(head)?;
        let rest = rest
            .get(..length)
            .ok_or_else(|| Malformed::new("cut short"))?;
        question(rest)
    }

    /// Reads an answer as a command does, from bytes.
    fn told(bytes: &[u8]) -> Result<Answer, Malformed> {
        let (head, rest) = bytes.split_at(HEAD.min(bytes.len()));
        let length = length_of_answer(head)?;
        let rest = rest
            .get(..length)
            .ok_or_else(|| Malformed::new("cut short"))?;
        answer(rest)
    }

    #[test]
    fn every_question_comes_back() {
        let back = [Back::Id(Id::from_bits(7)), Back::To(node("lb1"))];
        let back = back.map(|what| Question::TakeBack { what, wait: false });
        let new = fire(|request| request.run.0.clear());
        let all = back
            .into_iter()
            .chain([fire(|_| ()), new, Question::HowAreYou, Question::Nodes])
            .chain([
                Question::Tell(Box::new(inventory())),
                Question::Forget(node("lb1")),
                Question::Slot(wish()),
                Question::Slots(None),
                Question::Release {
                    group: wish().group,
                    node: node("lb1"),
                },
                Question::Resets(wish().group),
                Question::Reset(Box::new(reset())),
            ])
            .chain([Question::Ended(Outcome::Changed)]);
        for question in all {
            let bytes = ask(&question).expect("asked");
            assert_eq!(asked(&bytes), Ok(question));
            assert!(asked(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn every_answer_comes_back() {
        for answer in answers() {
            let bytes = say(&answer).expect("said");
            assert_eq!(told(&bytes), Ok(answer));
            assert!(told(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn they_are_written_as_they_always_were() {
        let question = ask(&fire(|_| ())).expect("asked");
        let text = r#"{"fire":{"request":{"id":"00000000000000000000000000000007","targets":["lb1","lb2"],"name":"again","cause":"refresh","on_behalf":null,"run":[{"id":"00000000000000000000000000000001","cause":"person","path":["db1"]}],"delta":2000000000,"ttl":3600000000000},"wait":true}}"#;
        let length = u8::try_from(text.len() - 256).expect("under 512");
        assert_eq!(
            &question[..HEAD],
            &[b"AGQ1", &[0, 0, 1, length][..]].concat()
        );
        assert_eq!(String::from_utf8_lossy(&question[HEAD..]), text);
        for (answer, text) in answers().iter().zip([
            r#"{"delivered":"lb1"}"#,
            r#"{"kept":"lb1"}"#,
            r#"{"failed":["lb1","no"]}"#,
            r#"{"left_out":"over 10 hops: a -> a ..."}"#,
            r#"{"said":{"backend":"etcd","away":"silent","until":9,"selection":{"not_stored":"full"}}}"#,
            r#"{"progress":{"id":"00000000000000000000000000000007","target":"lb1","news":{"status":["changed","in 3 s"]}}}"#,
            r#"{"progress":{"id":"00000000000000000000000000000007","target":"lb1","news":{"replaced_by":"00000000000000000000000000000008"}}}"#,
            r#"{"progress":{"id":"00000000000000000000000000000007","target":"lb1","news":"no_answer"}}"#,
            r#"{"how":{"version":"0.1.0","node":"web1","namespace":"default","began":1,"link":{"backend":"etcd","is_up":false,"since":2,"why":"connection refused"},"failures":[{"reason":"rights","what":"writing below to/"}],"outbox":{"triggers":3,"selections":1,"results":4,"oldest":5,"not_kept":"no space left"},"executor":"it did not answer","rejected":8,"ahead":-6}}"#,
            r#"{"refused":"noop"}"#,
            r#""end""#,
        ]) {
            let said = say(answer).expect("said");
            assert_eq!(String::from_utf8_lossy(&said[HEAD..]), text);
        }
    }

    #[test]
    fn what_breaks_a_bound_is_neither_asked_nor_read() {
        let many = |count: usize| (0..count).map(|n| node(&format!("n{n}"))).collect();
        for (question, words) in [
            (fire(|r| r.targets.clear()), "0 targets"),
            (
                fire(|r| (r.targets, r.selection, r.is_open) = (vec![], None, true)),
                "0 targets",
            ),
            (
                fire(|r| r.selection = Some(Criteria::default())),
                "0 conditions",
            ),
            (
                fire(|r| r.targets = many(MOST_TARGETS + 1)),
                "20001 targets",
            ),
            (fire(|r| r.targets.push(node("lb1"))), "lb1 is named twice"),
            (fire(|r| r.delta = Span::from_secs(86_401)), "a delta of"),
            (fire(|r| r.ttl = Span::from_secs(86_401)), "a ttl of"),
            (fire(|r| r.ttl = Span::ZERO), "a ttl of 0"),
            (fire(|r| r.run.0[0].path.clear()), "passed no node"),
            (Question::Ended(Outcome::Taken), "no run ends as taken"),
            (
                Question::Slot(Wish { limit: 0, ..wish() }),
                "wait for such a slot",
            ),
            (
                Question::Slot(Wish {
                    why: "\n".to_owned(),
                    ..wish()
                }),
                "control characters",
            ),
            (
                fire(|r| r.run.0[0].path = vec![node("a"); MOST_HOPS + 1]),
                "21 hops",
            ),
        ] {
            let error = ask(&question).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
            let unchecked = serde_json::to_vec(&question).expect("JSON");
            let read = super::question(&unchecked).expect_err(words).to_string();
            assert_eq!(read, error);
        }
        assert!(ask(&fire(|r| r.targets = many(MOST_TARGETS))).is_ok());
        let by_class = Criteria {
            classes: vec!["profile::lb".to_owned()],
            ..Criteria::default()
        };
        let stored = fire(|r| {
            (r.targets, r.selection, r.is_open) = (vec![], Some(by_class), true);
        });
        let bytes = ask(&stored).expect("a stored selection needs no target");
        assert_eq!(question(&bytes[HEAD..]).expect("the same"), stored);
        for answer in [
            Answer::Refused("a\u{1b}[2J".to_owned()),
            Answer::Stored {
                at: 7,
                why: "a\nb".to_owned(),
            },
            Answer::LeftOut("x".repeat(MOST_WORDS + 1)),
            Answer::Failed(node("a"), "\n".to_owned()),
            progress(News::Status(Outcome::Failed, "\r".to_owned())),
            Answer::How(Box::new(How {
                failures: vec![failure("\u{7f}")],
                ..how()
            })),
        ] {
            assert!(say(&answer).is_err(), "{answer:?}");
            let unchecked = serde_json::to_vec(&answer).expect("JSON");
            assert!(super::answer(&unchecked).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn a_length_is_checked_before_anything_is_read() {
        assert_eq!(length_of_question(b"AGQ1\0\0\0\x01"), Ok(1));
        assert_eq!(length_of_answer(b"AGS1\0\x03\0\0"), Ok(LONGEST_ANSWER));
        for head in [
            &b"AGQ1\0\x61\0\0"[..],
            b"AGQ2\0\0\0\x01",
            b"AGQ1\0\0\0",
            b"AGQ1\0\0\0\x01\0",
            b"",
        ] {
            assert!(length_of_question(head).is_err(), "{head:?}");
        }
        let newer = length_of_question(b"AGQ2\0\0\0\x01").expect_err("newer");
        assert_eq!(
            newer.to_string(),
            "version 2 of the language of 'again-fleet trigger': this program knows version 1"
        );
        assert!(length_of_answer(b"AGS1\0\x03\0\x01").is_err());
        assert!(length_of_answer(b"AGQ1\0\0\0\x01").is_err());
        assert!(question(&vec![b' '; LONGEST_QUESTION + 1]).is_err());
    }

    /// Names of any plain certnames, as many as may be, fit.
    #[test]
    fn as_many_targets_as_the_outbox_holds_can_be_named() {
        let longest = |n: usize| node(&format!("{n:0>width$}", width = Node::MOST));
        let question = fire(|r| r.targets = (0..MOST_TARGETS).map(longest).collect());
        assert!(ask(&question).is_ok());
    }

    #[test]
    fn what_is_said_of_a_firing_names_each_target_once() {
        let too_far = TooFar {
            id: Id::from_bits(1),
            limit: 2,
            nodes: vec![node("lb1"), node("web1")],
            is_circle: true,
        };
        let step = Said {
            delivered: vec![node("a"), node("b")],
            kept: vec![node("c")],
            until: Walltime::from_millis(5),
            failed: vec![(node("d"), "no\nroom".to_owned())],
            left_out: vec![too_far.clone(), too_far],
            selection: Some(SelectionState::NotStored("no\nroom".to_owned())),
        };
        let answers = said(&step, Backend::Etcd, Some("silent"));
        let summary = Summary {
            backend: Backend::Etcd,
            away: Some("silent".to_owned()),
            until: 5,
            selection: Some(SelectionState::NotStored("no room".to_owned())),
        };
        let expected = [
            Answer::Delivered(node("a")),
            Answer::Delivered(node("b")),
            Answer::Kept(node("c")),
            Answer::Failed(node("d"), "no room".to_owned()),
            Answer::LeftOut("over 2 hops: lb1 -> web1 -> lb1 ...".to_owned()),
            Answer::Said(summary),
        ];
        assert_eq!(answers, expected);
    }

    /// The longest sentence about the longest name has room.
    #[test]
    fn any_sentence_can_be_said() {
        let name = node(&"\"".repeat(Node::MOST));
        let why = words(&"\"".repeat(MOST_WORDS + 9));
        assert_eq!(why.len(), MOST_WORDS);
        let answer = Answer::Failed(name, why);
        let said = say(&answer).expect("said");
        assert_eq!(told(&said), Ok(answer));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = (asked(&bytes), told(&bytes), question(&bytes), answer(&bytes));
        }

        #[test]
        fn any_words_can_be_said(text in ".{0,40}") {
            let answer = Answer::Refused(words(&text));
            prop_assert_eq!(told(&say(&answer).expect("said")), Ok(answer));
        }

        #[test]
        fn any_name_can_be_asked_for(name in "[ -~]{1,128}") {
            let name: Name = name.parse().expect("a name");
            let question = fire(|request| request.name = name);
            prop_assert_eq!(asked(&ask(&question).expect("asked")), Ok(question));
        }
    }
}
