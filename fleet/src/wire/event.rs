//! What runs of Puppet did on a node, told when it happens: the lines that a run leaves, and the batches of them that the node signs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::Malformed;
use super::body::{Content, Placed, at_most};
use super::key::Key;
use super::lineage::Lineage;
use super::name::{Id, Node};
use super::outcome::cut;

/// How many events a batch may have.
pub const MOST_EVENTS: usize = 512;
/// The longest text of an event, in bytes.
pub const MOST_TEXT: usize = 512;
/// How many tags, and containers, an event may have.
const MOST_TAGS: usize = 64;
/// How many classes and metrics of a run are told.
const MOST_CLASSES: usize = 2000;
const MOST_METRICS: usize = 200;
/// All classes together, in bytes.
const MOST_TOGETHER: usize = 64 << 10;

again_base::shown_words! {
    /// What happened to a resource.
    #[derive(clap::ValueEnum)]
    pub enum Change {
        /// A property was changed, or an Exec was run.
        Changed = "changed",
        /// A service was started.
        Started = "started",
        /// A service was stopped.
        Stopped = "stopped",
        /// A change or a refresh failed.
        Failed = "failed",
        /// It was refreshed: a service restarted, an Exec run again.
        Refreshed = "refreshed",
    }
}

again_base::shown_words! {
    /// How a run ended, as its report has it.
    pub enum Status {
        /// Something was changed.
        Changed = "changed",
        /// Nothing was.
        Unchanged = "unchanged",
        /// Something failed.
        Failed = "failed",
    }
}

/// One change, failure or refresh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts the events of a run, from 1.
    pub n: u64,
    /// Time in milliseconds of the node's wall clock after 1970.
    pub at: u64,
    /// The resource, as Puppet refers to it: `Service[httpd]`.
    pub resource: String,
    /// What happened to it.
    pub change: Change,
    /// The property, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub property: Option<String>,
    /// Whether Puppet had brought it about before, and something else undone it (`corrective_change`).
    #[serde(default)]
    pub corrective: bool,
    /// The tags of the resource.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What contains it, outermost first (`containment_path`).
    #[serde(default)]
    pub within: Vec<String>,
    /// The manifest that declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The old value, if values are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The new value, if values are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// Puppet's words, if values are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How a run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// When its first event was told, milliseconds of the node's wall clock after 1970.
    pub at: u64,
    /// Its environment.
    pub environment: String,
    /// The version of Puppet.
    pub puppet: String,
    /// What other nodes asked for it; empty if none did.
    #[serde(default)]
    pub origins: Lineage,
    /// Whether nobody could find out what asked for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    /// How many runs before it were dropped untold, because the spool was full.
    #[serde(default)]
    pub lost: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Counts on where the events end.
    pub n: u64,
    /// Time in milliseconds of the node's wall clock after 1970.
    pub at: u64,
    /// Result of the run.
    pub status: Status,
    /// The id of the transaction, as the report has it.
    pub transaction: String,
    /// The classes of its catalog.
    #[serde(default)]
    pub classes: Vec<String>,
    /// How many more there are.
    #[serde(default)]
    pub more_classes: u64,
    /// The metrics of its report (`raw_summary`), each by its group and name: `time.total`.
    #[serde(default)]
    pub metrics: BTreeMap<String, Number>,
    /// How many events of it found no room in the spool. Their numbers are missing.
    #[serde(default)]
    pub dropped: u64,
}

/// A line that a run leaves for the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first of all.
    Begun(Begun),
    /// One for each event.
    Event(Event),
    /// The last.
    Ended(Ended),
}

impl Line {
    /// Reads a line, and cuts what is too long of it.
    ///
    /// # Errors
    /// It is none.
    pub fn read(text: &[u8]) -> Result<Line, Malformed> {
        let mut line: Line = serde_json::from_slice(text)
            .map_err(|e| Malformed::new(super::shown(&e.to_string())))?;
        match &mut line {
            Line::Begun(begun) => {
                begun.environment = short(&begun.environment);
                begun.puppet = short(&begun.puppet);
            }
            Line::Event(event) => event.tidy(),
            Line::Ended(ended) => ended.tidy(),
        }
        Ok(line)
    }
}

/// As it may stand in a batch: of a bounded length, and without controls.
fn short(text: &str) -> String {
    cut(text, MOST_TEXT)
}

impl Event {
    fn tidy(&mut self) {
        self.resource = short(&self.resource);
        let optional = [
            &mut self.property,
            &mut self.file,
            &mut self.old,
            &mut self.new,
            &mut self.message,
        ];
        for text in optional.into_iter().flatten() {
            *text = short(text);
        }
        for texts in [&mut self.tags, &mut self.within] {
            texts.truncate(MOST_TAGS);
            texts.iter_mut().for_each(|text| *text = short(text));
        }
    }

    fn texts(&self) -> impl Iterator<Item = &String> {
        let optional = [
            &self.property,
            &self.file,
            &self.old,
            &self.new,
            &self.message,
        ];
        let lists = self.tags.iter().chain(&self.within);
        lists
            .chain(optional.into_iter().flatten())
            .chain([&self.resource])
    }
}

impl Ended {
    fn tidy(&mut self) {
        self.transaction = short(&self.transaction);
        let mut room = MOST_TOGETHER;
        let all = self.classes.len();
        self.classes
            .iter_mut()
            .for_each(|class| *class = short(class));
        self.classes.retain(|class| {
            let fits = class.len() <= room;
            room = room.saturating_sub(class.len());
            fits
        });
        self.classes.truncate(MOST_CLASSES);
        let left = (all - self.classes.len()) as u64;
        self.more_classes = self.more_classes.saturating_add(left);
        let metrics = std::mem::take(&mut self.metrics).into_iter();
        let metrics = metrics.filter(|(name, _)| short(name) == *name && name.len() <= 64);
        self.metrics = metrics.take(MOST_METRICS).collect();
    }

    fn check(&self) -> Result<(), Malformed> {
        at_most("classes", self.classes.len(), MOST_CLASSES)?;
        at_most("metrics", self.metrics.len(), MOST_METRICS)?;
        let together = self.classes.iter().map(String::len).sum();
        at_most("bytes of classes", together, MOST_TOGETHER)?;
        let texts = self.classes.iter().chain(self.metrics.keys());
        texts
            .chain([&self.transaction])
            .try_for_each(|text| checked(text))
    }
}

/// What stands at `event/NODE/RUN/FIRST`: events of one run, without a gap but for those that were dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The node where it happened, which signs.
    pub node: Node,
    /// The run; a new id for each.
    pub run: Id,
    /// How it began.
    pub begun: Begun,
    /// What it did, in order.
    pub events: Vec<Event>,
    /// How it ended, in its last batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

impl Batch {
    /// The number of the first thing in it; 0 if there is nothing.
    pub fn first(&self) -> u64 {
        let first = self.events.first().map(|event| event.n);
        first
            .or(self.ended.as_ref().map(|ended| ended.n))
            .unwrap_or(0)
    }

    /// The number of the last thing in it; 0 if there is nothing.
    pub fn last(&self) -> u64 {
        let last = self.ended.as_ref().map(|ended| ended.n);
        last.or(self.events.last().map(|event| event.n))
            .unwrap_or(0)
    }
}

impl Placed for Batch {
    fn place(&self) -> (Key, &Node) {
        let key = Key::Event {
            node: self.node.clone(),
            run: self.run.clone(),
            first: self.first(),
        };
        (key, &self.node)
    }
}

impl Content for Batch {
    const KIND: &'static str = "event.1";

    fn check(&self) -> Result<(), Malformed> {
        at_most("events", self.events.len(), MOST_EVENTS)?;
        if !self.begun.origins.0.is_empty() {
            self.begun.origins.check()?;
        }
        [&self.begun.environment, &self.begun.puppet]
            .into_iter()
            .try_for_each(|text| checked(text))?;
        for event in &self.events {
            at_most("tags of an event", event.tags.len(), MOST_TAGS)?;
            at_most("containers of an event", event.within.len(), MOST_TAGS)?;
            event.texts().try_for_each(|text| checked(text))?;
        }
        if let Some(ended) = &self.ended {
            ended.check()?;
        }
        let last = self.ended.as_ref().map(|ended| ended.n);
        let mut numbers = self.events.iter().map(|event| event.n).chain(last);
        if self.first() == 0 || !numbers.by_ref().is_sorted_by(|a, b| a < b) {
            return Err(Malformed::new("the numbers of the events are not in order"));
        }
        Ok(())
    }
}

fn checked(text: &str) -> Result<(), Malformed> {
    at_most("bytes of an event's text", text.len(), MOST_TEXT)?;
    if text.chars().any(char::is_control) {
        return Err(Malformed::new("an event has control characters"));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::body::{decode, encode};

    pub fn event(n: u64) -> Event {
        Event {
            n,
            at: 1000 + n,
            resource: "Service[httpd]".to_owned(),
            change: Change::Started,
            property: Some("ensure".to_owned()),
            corrective: false,
            tags: vec!["service".to_owned(), "httpd".to_owned()],
            within: vec!["Stage[main]".to_owned(), "Roles::Web".to_owned()],
            file: Some("/etc/puppet/code/site.pp".to_owned()),
            line: Some(3),
            old: None,
            new: None,
            message: None,
        }
    }

    pub fn ended(n: u64) -> Ended {
        Ended {
            n,
            at: 2000,
            status: Status::Changed,
            transaction: "b2f3".to_owned(),
            classes: vec!["roles::frontend_web".to_owned()],
            more_classes: 0,
            metrics: BTreeMap::from([
                ("resources.total".to_owned(), Number::from(7)),
                (
                    "time.total".to_owned(),
                    Number::from_f64(1.25).expect("a number"),
                ),
            ]),
            dropped: 0,
        }
    }

    pub fn batch() -> Batch {
        Batch {
            node: "web1.test".parse().expect("a certname"),
            run: Id::from_bits(1),
            begun: Begun {
                at: 1000,
                environment: "production".to_owned(),
                puppet: "7.23.0".to_owned(),
                origins: Lineage::default(),
                unknown: false,
                lost: 0,
            },
            events: vec![event(1), event(2)],
            ended: Some(ended(3)),
        }
    }

    #[test]
    fn a_batch_comes_back() {
        let bytes = encode(&batch()).expect("written");
        assert_eq!(decode(&bytes), Ok(batch()));
        assert_eq!(batch().first(), 1);
    }

    #[test]
    fn lines_are_as_a_run_writes_them() {
        let line = Line::read(br#"{"begun":{"at":1,"environment":"production","puppet":"8.4.0"}}"#);
        assert!(matches!(line, Ok(Line::Begun(begun)) if begun.lost == 0 && !begun.unknown));
        let line = Line::read(
            br#"{"begun":{"at":1,"origins":[],"unknown":true,"environment":"production","puppet":"8.4.0","lost":0}}"#,
        );
        assert!(matches!(line, Ok(Line::Begun(begun)) if begun.unknown));
        let line = Line::read(
            br#"{"event":{"n":1,"at":2,"resource":"File[/x]","change":"changed","tags":["file"],"other":1}}"#,
        );
        assert!(matches!(line, Ok(Line::Event(event)) if event.change == Change::Changed));
        let line = Line::read(
            br#"{"ended":{"n":2,"at":3,"status":"failed","transaction":"x","metrics":{"time.total":0.5}}}"#,
        );
        assert!(matches!(line, Ok(Line::Ended(ended)) if ended.status == Status::Failed));
        for bad in [
            &b""[..],
            b"{}",
            b"{\"event\":{}}",
            b"{\"begun\":1}",
            b"\xff",
        ] {
            assert!(Line::read(bad).is_err());
        }
    }

    #[test]
    fn what_breaks_a_bound_is_neither_written_nor_read() {
        let with = |event: Event| Batch {
            events: vec![event],
            ..batch()
        };
        let text = "x".repeat(MOST_TEXT + 1);
        for bad in [
            with(Event {
                resource: text.clone(),
                ..event(1)
            }),
            with(Event {
                message: Some("a\nb".to_owned()),
                ..event(1)
            }),
            with(Event {
                tags: vec![String::new(); MOST_TAGS + 1],
                ..event(1)
            }),
            with(event(3)),
            with(event(0)),
            Batch {
                events: (1..=513).map(event).collect(),
                ended: None,
                ..batch()
            },
            Batch {
                events: vec![],
                ended: None,
                ..batch()
            },
            Batch {
                ended: Some(Ended {
                    classes: vec![String::new(); MOST_CLASSES + 1],
                    ..ended(3)
                }),
                ..batch()
            },
        ] {
            assert!(encode(&bad).is_err(), "{bad:?}");
            assert!(decode::<Batch>(&serde_json::to_vec(&bad).expect("JSON")).is_err());
        }
    }

    proptest! {
        /// Whatever a run leaves, what is read of it may be told.
        #[test]
        fn what_is_read_keeps_to_the_bounds(
            text in "\\PC{0,700}|[a\n\u{1b}]{0,700}", many in 0..100_usize, classes in 0..2100_usize
        ) {
            let mut event = Event { message: Some(text.clone()), resource: text.clone(), ..event(1) };
            event.tags = vec![text.clone(); many];
            let mut ended = Ended { transaction: text.clone(), ..ended(2) };
            ended.classes = vec![text.chars().take(60).collect(); classes];
            let read = |line: &Line| Line::read(&serde_json::to_vec(line).expect("JSON"));
            let (Ok(Line::Event(event)), Ok(Line::Ended(ended))) =
                (read(&Line::Event(event)), read(&Line::Ended(ended))) else { panic!("unread") };
            prop_assert_eq!(ended.classes.len() as u64 + ended.more_classes, classes as u64);
            let told = Batch { events: vec![event], ended: Some(ended), ..batch() };
            prop_assert_eq!(told.check(), Ok(()));
        }
    }
}
