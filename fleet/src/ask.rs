//! The language on the firing socket: what a command asks of this node's service, and what it is told.
//!
//! A connection carries one question and a stream of answers, of which [`Answer::End`] is the last. Each of them begins with
//! [`HEAD`] bytes: which language this is, and how long the rest is, which is checked before a byte of the rest is read. A stream
//! that ends without [`Answer::End`] was cut short: what is missing was not said.
//!
//! | question | answers |
//! | --- | --- |
//! | [`Question::Fire`], [`Question::TakeBack`] | each target once ([`Answer::Delivered`], [`Answer::Kept`] or [`Answer::Failed`]), then [`Answer::Said`]; to whoever waits, [`Answer::Progress`] until each target has told the last that it will |
//! | [`Question::HowAreYou`] | [`Answer::How`] |
//! | [`Question::Nodes`] | [`Answer::Node`], [`Answer::Ignored`] and [`Answer::Missing`], each as often as there are some, after [`Answer::Stored`] if the backend does not show them; or [`Answer::NotSeen`] |
//! | [`Question::Story`] | [`Answer::OnTheWay`] and [`Answer::Entry`], each as often as there are some, and [`Answer::Incomplete`] once if older ones were not read; or [`Answer::NotSeen`] |
//! | [`Question::Slot`] | [`Answer::Waits`] or [`Answer::Away`] whenever something has changed, until its turn has come |
//! | [`Question::Locks`] | [`Answer::Lock`] and [`Answer::IgnoredToken`], as often as there are some; or [`Answer::NotSeen`] |
//! | [`Question::Resets`] | [`Answer::Reset`], as often as there are some; or [`Answer::NotSeen`] |
//! | [`Question::Slots`] | [`Answer::Slot`], as often as there are some; or [`Answer::NotSeen`] |
//! | [`Question::Tell`], [`Question::Ended`], [`Question::Forget`], [`Question::Release`], [`Question::Move`], [`Question::Reset`] | nothing but [`Answer::End`], once it is done; or [`Answer::NotSeen`] |
//! | any | [`Answer::Refused`] in place of all that |

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

/// How long the first part of a question or an answer is, in bytes.
pub const HEAD: usize = 8;
/// How many targets a question may name: the outbox has room for no more triggers.
pub const MOST_TARGETS: usize = 20_000;
/// How long the rest of a question may be, in bytes: so many targets with names of any length.
pub const LONGEST_QUESTION: usize = 6 << 20;
/// How long the rest of an answer may be, in bytes: what a node tells of itself, with all that JSON needs.
pub const LONGEST_ANSWER: usize = 192 << 10;
/// The longest sentence of an answer, in bytes. One names all nodes of some circles.
const MOST_WORDS: usize = 16 << 10;

const ASK: &[u8; 4] = b"AGQ1";
const SAY: &[u8; 4] = b"AGS1";

/// What a command asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Fire this.
    Fire {
        /// Request to send.
        request: Request,
        /// Whether to tell what becomes of it.
        wait: bool,
    },
    /// Take back what nobody has taken yet.
    TakeBack {
        /// Triggers to take back.
        what: Back,
        /// Whether to tell what becomes of it.
        wait: bool,
    },
    /// How the service is.
    HowAreYou,
    /// Who is there, and what each node tells of itself.
    Nodes,
    /// To tell this of the node. The time and what the service knows by itself are the service's.
    Tell(Box<Inventory>),
    /// To tell how a run has ended: changed, unchanged, failed or unknown.
    Ended(Outcome),
    /// To remove what a node that is gone for good has told of itself.
    Forget(Node),
    /// What followed from an origin, or from all that the backend knows of.
    Story(Option<Id>),
    /// A slot for a run.
    Slot(Wish),
    /// Who runs or waits in a group, or in all.
    Slots(Option<Name>),
    /// To take away a node's place in a group.
    Release {
        /// The group.
        group: Name,
        /// The node.
        node: Node,
    },
    /// Who holds which lock, and who is there; or only, as this node knows them, those for which it is a candidate.
    Locks(bool),
    /// To have a lock go on: which, from which token, and to whom.
    Move(Box<Lock>),
    /// Resets of this lock that were written by operators whom this node lists.
    Resets(Name),
    /// To reset the tokens of a lock that nobody holds.
    Reset(Box<Reset>),
}

/// A slot that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// In which group.
    pub group: Name,
    /// How many that has, as far as this node knows.
    pub limit: u32,
    /// The run; the slot is free again when it has ended.
    pub run: Identity,
    /// What it is, in words.
    pub why: String,
}

/// What a command is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The backend has it for this node.
    Delivered(Node),
    /// It is on this machine's disk for this node.
    Kept(Node),
    /// It could neither be sent nor kept for this node, or may not be fired.
    Failed(Node, String),
    /// An origin went too far and was left out; its way.
    LeftOut(String),
    /// All targets have been named.
    Said(Summary),
    /// What became of it on a node. Where a newer trigger stands for it, the news from here on are of that one.
    Progress {
        /// The trigger's id.
        id: Id,
        /// The node.
        target: Node,
        /// What became of it there.
        news: News,
    },
    /// How the service is.
    How(Box<How>),
    /// What a node tells of itself.
    Node(Box<Inventory>),
    /// The backend does not show the nodes; those of the last inventory follow, without which of them are connected.
    Stored {
        /// When they were read, milliseconds of the wall clock after 1970.
        at: u64,
        /// Why there are none that are newer.
        why: String,
    },
    /// Node whose facts the backend has lost, and which counts by those that it had published before.
    Missing {
        /// The node.
        node: Node,
        /// When the loss was noticed, milliseconds of the wall clock after 1970.
        since: u64,
    },
    /// Node whose published facts are ignored; the log says why.
    Ignored(Node),
    /// What became of a trigger.
    Entry(Box<Entry>),
    /// Fired here, and its target has told nothing final for this node yet; with one of its origins.
    OnTheWay(Box<Trigger>),
    /// Its turn has not come; what it waits for, in words. They are empty as long as its place is on its way.
    Waits(String),
    /// The same, where nobody can say it; why.
    Away(String),
    /// Who runs or waits, and the revision that is its place.
    Slot(Box<Slot>, u64),
    /// Who holds a lock; or why that is not certain, and a word without a token.
    Lock(Box<Lock>, String),
    /// Older values were not read; which were, in words.
    Incomplete(String),
    /// A reset that an operator has written.
    Reset(Box<Reset>),
    /// This node ignores the token that a candidate publishes of a lock.
    IgnoredToken {
        /// The lock.
        lock: Name,
        /// The candidate.
        node: Node,
        /// The token.
        token: u64,
    },
    /// The backend did not show what was asked for; why.
    NotSeen(String),
    /// The question is not one that this service answers.
    Refused(String),
    /// There is nothing more to say.
    End,
}

/// What goes for all targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The backend.
    pub backend: Backend,
    /// Why it cannot be reached; nothing if it can.
    pub away: Option<String>,
    /// Until when what is kept is sent, milliseconds of the wall clock after 1970.
    pub until: u64,
    /// What became of the selection; nothing if there is none that is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<SelectionState>,
}

/// How a service is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct How {
    /// Its version.
    pub version: String,
    /// The name of this node, as it signs.
    pub node: Node,
    /// Its fleet.
    pub namespace: Namespace,
    /// When it began, milliseconds of the wall clock after 1970.
    pub began: u64,
    /// Its connection to the backend.
    pub link: Link,
    /// Failures of its work while the backend is reached.
    pub failures: Vec<Failure>,
    /// What waits to be sent.
    pub outbox: Waiting,
    /// Why the executor did not answer when it was asked last; nothing if it did.
    pub take: Option<String>,
    /// How much was rejected since it began: registers and results that are not what they should be, or not from whom this node
    /// listens to.
    pub rejected: u64,
    /// Slots that have ended under runs of this node, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<String>,
    /// Sentences about faulty tokens of the locks for which it is a candidate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<String>,
    /// How far at least this node's clock is ahead of that of the node that told something last, in milliseconds.
    pub ahead: Option<i64>,
    /// The highest number of a trigger that was given before the clock was set back behind it, milliseconds of the wall clock
    /// after 1970.
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
    /// Sentence that says what cannot be done, and why.
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
    /// The backend does not allow this node to do it.
    Rights,
    /// The backend has no room.
    Room,
    /// The backend has no room for events, which are worth less than triggers.
    Events,
    /// The backend does not hold values of this size.
    Size,
    /// The numbers for `again metrics` cannot be written.
    Metrics,
}

/// A connection to a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The backend.
    pub backend: Backend,
    /// Whether it is reached.
    pub is_up: bool,
    /// Since when, milliseconds of the wall clock after 1970.
    pub since: u64,
    /// Why it is not reached; may be empty.
    pub why: String,
}

/// What waits to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Triggers whose targets have told nothing yet.
    pub triggers: u64,
    /// Selections that are resolved when the backend shows all nodes.
    pub selections: u64,
    /// Results of this node.
    pub results: u64,
    /// When the oldest trigger was fired, milliseconds of the wall clock after 1970.
    pub oldest: Option<u64>,
    /// Why the disk does not keep what is to be kept; nothing if it does.
    pub not_kept: Option<String>,
}

/// What a client is told of its request, in the order in which it goes out.
pub fn said(said: &Said, backend: Backend, away: Option<&str>) -> Vec<Answer> {
    let delivered = said.delivered.iter().cloned().map(Answer::Delivered);
    let kept = said.kept.iter().cloned().map(Answer::Kept);
    let failed = said
        .failed
        .iter()
        .map(|(node, why)| Answer::Failed(node.clone(), words(why)));
    // The same origin goes too far to each of the targets.
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

/// A sentence as an answer may have it: cut at its bound, controls replaced.
pub fn words(text: &str) -> String {
    outcome::cut(text, MOST_WORDS)
}

/// Writes a question.
///
/// # Errors
/// It breaks a bound.
pub fn ask(question: &Question) -> Result<Vec<u8>, Malformed> {
    question.check()?;
    write(ASK, question, LONGEST_QUESTION)
}

/// How long the rest of a question is, by its head.
///
/// # Errors
/// It is none, or too long.
pub fn length_of_question(head: &[u8]) -> Result<usize, Malformed> {
    length(ASK, head, LONGEST_QUESTION)
}

/// Reads the rest of a question.
///
/// # Errors
/// It is none, or breaks a bound.
pub fn question(rest: &[u8]) -> Result<Question, Malformed> {
    let question: Question = read("question", rest, LONGEST_QUESTION)?;
    question.check()?;
    Ok(question)
}

/// Reads a request that a command has left on disk, as [`ask`] wrote it.
///
/// # Errors
/// It is not a question that sends triggers, or breaks a bound.
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

/// Writes an answer.
///
/// # Errors
/// It breaks a bound: a sentence was not made by [`words`].
pub fn say(answer: &Answer) -> Result<Vec<u8>, Malformed> {
    answer.check()?;
    write(SAY, answer, LONGEST_ANSWER)
}

/// How long the rest of an answer is, by its head.
///
/// # Errors
/// It is none, or too long.
pub fn length_of_answer(head: &[u8]) -> Result<usize, Malformed> {
    length(SAY, head, LONGEST_ANSWER)
}

/// Reads the rest of an answer.
///
/// # Errors
/// It is none, or breaks a bound.
pub fn answer(rest: &[u8]) -> Result<Answer, Malformed> {
    let answer: Answer = read("answer", rest, LONGEST_ANSWER)?;
    answer.check()?;
    Ok(answer)
}

impl Question {
    /// Whether it is root's alone, and not for those who may fire.
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

    /// All text in it that is not checked by its type.
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
                let some = [&how.take, &how.outbox.not_kept].into_iter().flatten();
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
            take: Some("it did not answer".to_owned()),
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
            r#"{"progress":{"id":"00000000000000000000000000000007","target":"lb1","news":{"told":["changed","in 3 s"]}}}"#,
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
