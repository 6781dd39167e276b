//! Events of Puppet runs on a node, published as they happen: the lines that a run writes for the
//! service, and the batches of events that the node signs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::Malformed;
use super::body::{Content, Placed, at_most};
use super::key::Key;
use super::lineage::Lineage;
use super::name::{Id, Node};
use super::outcome::cut;

/// Most events in a batch.
pub const MOST_EVENTS: usize = 512;
/// Longest text of an event, in bytes.
pub const MOST_TEXT: usize = 512;
/// Most tags, and most containers, of an event.
const MOST_TAGS: usize = 64;
/// Most classes and metrics of a run that are published.
const MOST_CLASSES: usize = 2000;
const MOST_METRICS: usize = 200;
/// Most bytes of all classes together.
const MOST_TOGETHER: usize = 64 << 10;

again_base::shown_words! {
    /// Kind of change of a resource.
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
    /// Result of a run from its report.
    pub enum Status {
        /// Something was changed.
        Changed = "changed",
        /// Nothing was changed.
        Unchanged = "unchanged",
        /// Something failed.
        Failed = "failed",
    }
}

/// Change, failure or refresh of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event in its run, from 1.
    pub n: u64,
    /// Time in milliseconds of the node's wall clock after 1970.
    pub at: u64,
    /// Resource as Puppet refers to it: `Service[httpd]`.
    pub resource: String,
    /// Kind of change.
    pub change: Change,
    /// Property that was changed, if the event concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub property: Option<String>,
    /// Whether Puppet had made this change before, and something else has undone it
    /// (`corrective_change`).
    #[serde(default)]
    pub corrective: bool,
    /// Tags of the resource.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Containers of the resource, outermost first (`containment_path`).
    #[serde(default)]
    pub within: Vec<String>,
    /// Manifest that declares the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line in the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Old value, if values are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// New value, if values are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// Message of Puppet, if values are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Beginning of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Time of its first event, in milliseconds of the node's wall clock after 1970; of its end if
    /// it had no event.
    pub at: u64,
    /// Environment of the run.
    pub environment: String,
    /// Version of Puppet.
    pub puppet: String,
    /// Origins of the run, if other nodes requested it; otherwise empty.
    #[serde(default)]
    pub origins: Lineage,
    /// Whether the origins could not be determined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    /// Number of earlier runs that were dropped unpublished, because the spool was full.
    #[serde(default)]
    pub lost: u64,
}

/// End of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Number that follows the last event's.
    pub n: u64,
    /// Time in milliseconds of the node's wall clock after 1970.
    pub at: u64,
    /// Result of the run.
    pub status: Status,
    /// Id of the transaction in the report.
    pub transaction: String,
    /// Classes of the run's catalog.
    #[serde(default)]
    pub classes: Vec<String>,
    /// Number of further classes, which are left out.
    #[serde(default)]
    pub more_classes: u64,
    /// Metrics of the report (`raw_summary`), each with its group and name: `time.total`.
    #[serde(default)]
    pub metrics: BTreeMap<String, Number>,
    /// Number of events that did not fit into the spool. Their numbers are missing.
    #[serde(default)]
    pub dropped: u64,
}

/// Line that a run writes for the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Begun(Begun),
    /// A line for each event.
    Event(Event),
    /// The last line.
    Ended(Ended),
}

impl Line {
    /// Parses a line; shortens texts and lists that are too long.
    ///
    /// # Errors
    /// The text is not such a line.
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

/// Text for a batch: of a bounded length, and without control characters.
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

/// Value at `event/NODE/RUN/FIRST`: events of one run, complete except for dropped ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Node of the run, which signs this.
    pub node: Node,
    /// Id of the run.
    pub run: Id,
    /// Beginning of the run.
    pub begun: Begun,
    /// Events in order of their numbers.
    pub events: Vec<Event>,
    /// End of the run, in its last batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

impl Batch {
    /// Number of the first event or end in it; 0 if it is empty.
    pub fn first(&self) -> u64 {
        let first = self.events.first().map(|event| event.n);
        first
            .or(self.ended.as_ref().map(|ended| ended.n))
            .unwrap_or(0)
    }

    /// Number of the last event or end in it; 0 if it is empty.
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
