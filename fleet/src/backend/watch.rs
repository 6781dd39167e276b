//! A watch of the changes below a prefix. It continues over lost connections, compactions, and a
//! backend that lost its data.
//!
//! A watch lists, and follows from there. It lists again whenever following ends, and on request
//! unless the backend says that nothing was written since. It then reports the difference to what
//! it reported before, including removals. So the reported state always equals that of a list,
//! however many events the backend lost in between; old etcds lose some.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, sleep_until};

use super::shares::{Bounds, MOST_CUT, Sorter};
use super::{Backend, Change, Error, Feed, Shares, Value, shares};
use crate::wire::quota::{Amount, Quotas};

/// The longest first pause after a failure; the limit doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a list with an older revision than the watch has reported, until the next list.
const LAG: Duration = Duration::from_secs(2);
/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A change.
    Changed(Change),
    /// Everything in the list has been reported, except what was cut off.
    Complete,
    /// Below this segment of the keys there is more than is reported; sent once for each segment.
    Cut(String),
    /// The value at this key is not read.
    Foreign(String),
    /// The backend is unreachable at present. Sent once for each interruption.
    Lost(Error),
}

/// A watch below a prefix.
pub struct Watch<'e, E: Backend> {
    backend: &'e E,
    prefix: String,
    /// The values that were reported.
    told: BTreeMap<String, Mark>,
    /// Limits on what is reported, if any.
    bounds: Option<Bounds>,
    /// The used part of the limits.
    used: Quotas<String>,
    /// The segments below which there is more; those of them that were reported; and those below
    /// which there is room again.
    cut: BTreeSet<String>,
    said: BTreeSet<String>,
    roomy: BTreeSet<String>,
    /// Whether more segments were cut off than are known by name.
    is_more_cut: bool,
    /// Fullness of all shares together when segments were cut off.
    fullness: u8,
    /// Whether keys that a list does not read were reported.
    has_named_foreign: bool,
    /// Revision up to which everything was reported.
    revision: u64,
    /// Revision of the last list.
    listed: u64,
    feed: Option<E::Feed>,
    /// Whether a list is due although the feed works.
    list_again: bool,
    /// Time of the next list after one with an older revision.
    behind_until: Option<Instant>,
    ready: VecDeque<Event>,
    /// Time when following began.
    since: Instant,
    is_lost: bool,
    /// Number of failures in a row, with no change and little time between them.
    failures: u32,
    dice: StdRng,
}

impl<'e, E: Backend> Watch<'e, E> {
    /// A watch that begins with everything below the prefix. The seed randomizes the pauses: nodes
    /// that lost a backend at the same time must not reconnect at the same time.
    pub fn new(backend: &'e E, prefix: impl Into<String>, seed: u64) -> Self {
        Watch {
            backend,
            prefix: prefix.into(),
            told: BTreeMap::new(),
            bounds: None,
            used: Quotas::new(Amount::default()),
            cut: BTreeSet::new(),
            said: BTreeSet::new(),
            roomy: BTreeSet::new(),
            is_more_cut: false,
            fullness: 0,
            has_named_foreign: false,
            revision: 0,
            listed: 0,
            feed: None,
            list_again: false,
            behind_until: None,
            ready: VecDeque::new(),
            since: Instant::now(),
            is_lost: false,
            failures: 0,
            dice: StdRng::seed_from_u64(seed),
        }
    }

    /// Limits what is reported below each next segment of the keys, and of all together. The rest
    /// stays in the backend, and is read when reported values of that segment are removed.
    #[must_use]
    pub fn within(mut self, bounds: Bounds) -> Self {
        self.used = bounds.quotas();
        self.bounds = Some(bounds);
        self
    }

    /// Requests a list before the next change.
    pub fn list_again(&mut self) {
        self.list_again = true;
    }

    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            let step = if self.feed.is_none() {
                self.begin().await
            } else if self.list_again {
                self.compare().await
            } else if let Some(segment) = self.roomy.first().cloned() {
                self.fill(segment).await
            } else {
                self.follow().await
            };
            if let Err(error) = step
                && let Some(event) = self.fail(error)
            {
                return event;
            }
        }
    }

    /// Stops following. Returns the event to report, if the error is the first of an interruption.
    fn fail(&mut self, error: Error) -> Option<Event> {
        let has_followed = self.feed.take().is_some();
        if has_followed && self.since.elapsed() > LONGEST_PAUSE {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let is_news = !self.is_lost;
        self.is_lost = true;
        is_news.then_some(Event::Lost(error))
    }

    /// Lists, and follows from there.
    async fn begin(&mut self) -> Result<(), Error> {
        if self.failures > 0 {
            let pause = self.pause();
            sleep(pause).await;
        }
        let list = self.list(&self.prefix.clone()).await?;
        let feed = self
            .backend
            .follow(&self.prefix, list.list.revision)
            .await?;
        self.feed = Some(feed);
        self.since = Instant::now();
        self.is_lost = false;
        self.take(list);
        Ok(())
    }

    /// Lists. A member of a cluster that lags behind has an older revision than was reported for a
    /// moment, a backend that lost its data for longer.
    async fn list(&mut self, below: &str) -> Result<Shares, Error> {
        loop {
            if let Some(time) = self.behind_until {
                sleep_until(time).await;
            }
            let list = self.read(below).await?;
            let is_behind = list.list.revision < self.revision;
            if !is_behind || self.behind_until.is_some() {
                self.behind_until = None;
                return Ok(list);
            }
            self.behind_until = Some(Instant::now() + LAG);
        }
    }

    async fn read(&self, below: &str) -> Result<Shares, Error> {
        let Some(bounds) = &self.bounds else {
            return self.backend.list(below).await.map(Shares::from);
        };
        let known = self.told.iter();
        let known = known.map(|(key, mark)| (key.clone(), mark.size)).collect();
        let sorter = Sorter::new(&self.prefix, bounds, &known, self.used.clone());
        self.backend.list_shares(below, sorter).await
    }

    /// Reports more of what is below a segment.
    async fn fill(&mut self, segment: String) -> Result<(), Error> {
        let below = format!("{}{segment}/", self.prefix);
        let mut shares = self.list(&below).await?;
        if shares.list.revision < self.revision {
            // The backend lost its data.
            self.feed = None;
            return Ok(());
        }
        self.roomy.remove(&segment);
        self.cut.remove(&segment);
        for value in shares.list.values.drain(..) {
            let known = self.told.get(&value.key);
            if known.is_some_and(|known| known.revision >= value.revision) {
                continue;
            }
            if self.has_room(&value) {
                self.tell(Change::Put(value));
            } else {
                shares.cut.insert(segment.clone());
            }
        }
        self.leave(shares.cut);
        Ok(())
    }

    /// Whether the limits allow a value to be reported, perhaps in place of an older one.
    fn has_room(&mut self, value: &Value) -> bool {
        let segment = self.segment(&value.key);
        let known = self.told.get(&value.key).map(|known| known.size);
        known.inspect(|size| self.used.remove(&segment, *size));
        let has_room = self.used.has_room(&segment, value.size());
        known.inspect(|size| self.used.add(&segment, *size));
        has_room
    }

    fn segment(&self, key: &str) -> String {
        shares::segment(&self.prefix, key).to_owned()
    }

    /// Marks these segments as cut off: their other values stay in the backend.
    fn leave(&mut self, segments: BTreeSet<String>) {
        for segment in segments {
            if self.said.len() < MOST_CUT && self.said.insert(segment.clone()) {
                self.ready.push_back(Event::Cut(segment.clone()));
            }
            if self.cut.len() < MOST_CUT {
                self.cut.insert(segment);
            } else {
                self.is_more_cut |= !self.cut.contains(&segment);
            }
            self.fullness = self.fullness.max(self.used.fullness());
        }
    }

    /// Schedules a read of more below a segment if it has room again, and of everything if all
    /// together have room again.
    fn read_more(&mut self, segment: String) {
        if self.cut.contains(&segment) && self.used.is_half_empty(&segment) {
            self.roomy.insert(segment);
        }
        if self.used.fullness() < self.fullness {
            self.fullness = self.used.fullness();
            // No list has this revision.
            (self.list_again, self.listed) = (true, u64::MAX);
        }
    }

    async fn compare(&mut self) -> Result<(), Error> {
        if self.backend.newest(&self.prefix) == Some(self.listed) {
            self.list_again = false;
            return Ok(());
        }
        let list = self.list(&self.prefix.clone()).await?;
        let began_anew = list.list.revision < self.revision;
        let (cut, is_more_cut) = (self.cut.clone(), self.is_more_cut);
        self.take(list);
        // The feed has missed a change and may be dead. Changes of a segment that was cut off do
        // not count: a list may contain another part of it.
        let is_missed = |event: &Event| match event {
            Event::Changed(change) => {
                let segment = self.segment(change.key());
                let is_cut = cut.contains(&segment) || self.cut.contains(&segment);
                !is_more_cut && !self.is_more_cut && !is_cut
            }
            _ => false,
        };
        if began_anew || self.ready.iter().any(is_missed) {
            self.feed = None;
        }
        Ok(())
    }

    async fn follow(&mut self) -> Result<(), Error> {
        let feed = self.feed.as_mut().expect("it follows");
        let change = feed.next().await?;
        self.failures = 0;
        self.revision = self.revision.max(change.revision());
        let mut bounds = self.bounds.iter();
        if bounds.any(|bounds| !(bounds.is_read)(change.key())) {
            if let Change::Put(value) = change {
                self.ready.push_back(Event::Foreign(value.key));
            }
            return Ok(());
        }
        let known = self.told.get(change.key()).map(|known| known.revision);
        // Not news: changes that the list had, duplicates, and changes that an old etcd sends after
        // newer ones.
        let is_news = match &change {
            Change::Put(_) => known.is_none_or(|known| known < change.revision()),
            Change::Removed { .. } => known.is_some_and(|known| known < change.revision()),
        };
        if !is_news {
            return Ok(());
        }
        let segment = self.segment(change.key());
        match change {
            Change::Put(value) if self.bounds.is_some() && !self.has_room(&value) => {
                // The old value no longer exists.
                self.leave(BTreeSet::from([segment.clone()]));
                if known.is_some() {
                    let (key, revision) = (value.key, value.revision);
                    self.tell(Change::Removed { key, revision });
                    self.read_more(segment);
                }
            }
            Change::Put(_) => self.tell(change),
            Change::Removed { .. } => {
                self.tell(change);
                self.read_more(segment);
            }
        }
        Ok(())
    }

    /// Reports the difference between a list and what was reported.
    fn take(&mut self, Shares { list, cut, foreign }: Shares) {
        self.list_again = false;
        self.cut.clear();
        self.roomy.clear();
        (self.is_more_cut, self.fullness) = (false, 0);
        if !foreign.is_empty() && !std::mem::replace(&mut self.has_named_foreign, true) {
            self.ready.extend(foreign.into_iter().map(Event::Foreign));
        }
        if list.revision < self.revision {
            // The backend lost its data: old revisions have no meaning, and no value of it is
            // known.
            let told = self.told.values_mut();
            told.for_each(|told| (told.revision, told.hash) = (0, 0));
        }
        (self.revision, self.listed) = (list.revision, list.revision);
        let listed: BTreeMap<&str, &Value> = list
            .values
            .iter()
            .map(|value| (value.key.as_str(), value))
            .collect();
        let gone = self
            .told
            .keys()
            .filter(|key| !listed.contains_key(key.as_str()));
        let gone: Vec<String> = gone.cloned().collect();
        for key in gone {
            let segment = self.segment(&key);
            if cut.contains(&segment) {
                self.roomy.insert(segment);
            }
            self.tell(Change::Removed {
                key,
                revision: list.revision,
            });
        }
        for value in list.values {
            if self.told.get(&value.key) != Some(&Mark::of(&value)) {
                self.tell(Change::Put(value));
            }
        }
        self.leave(cut);
        self.ready.push_back(Event::Complete);
    }

    fn tell(&mut self, change: Change) {
        let before = match &change {
            Change::Put(value) => self.told.insert(value.key.clone(), Mark::of(value)),
            Change::Removed { key, .. } => self.told.remove(key),
        };
        if self.bounds.is_some() {
            let segment = self.segment(change.key());
            before.inspect(|mark| self.used.remove(&segment, mark.size));
            if let Change::Put(value) = &change {
                self.used.add(&segment, value.size());
            }
        }
        self.ready.push_back(Event::Changed(change));
    }

    fn pause(&mut self) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(16));
        self.dice
            .random_range(Duration::ZERO..=doubled.min(LONGEST_PAUSE))
    }
}

/// Number of a watch, and the channel for its events.
#[derive(Debug, Clone)]
pub struct Tell(pub usize, pub UnboundedSender<(usize, Event)>);

impl Tell {
    /// Sends an event; does nothing if the receiver is closed.
    pub fn tell(&self, event: Event) {
        let _ = self.1.send((self.0, event));
    }
}

/// Sends all events of a watch, which lists again on each notification.
pub async fn watch<E: Backend>(
    backend: &E,
    prefix: String,
    bounds: Option<Bounds>,
    again: &Notify,
    tell: Tell,
) -> Infallible {
    let mut watch = Watch::new(backend, prefix, rand::rng().random());
    if let Some(bounds) = bounds {
        watch = watch.within(bounds);
    }
    loop {
        tokio::select! {
            event = watch.next() => tell.tell(event),
            () = again.notified() => watch.list_again(),
        }
    }
}

/// Summary of a value that was reported. It has a hash of the bytes too, because a backend that
/// lost its data may reach the same revision.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    revision: u64,
    hash: u64,
    size: usize,
}

impl Mark {
    fn of(value: &Value) -> Mark {
        let mut hasher = DefaultHasher::new();
        hasher.write(&value.bytes);
        Mark {
            revision: value.revision,
            hash: hasher.finish(),
            size: value.size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::super::Times;
    use super::super::faulty::{Call, Fault, Faulty, Plan};
    use super::super::memory::Memory;
    use super::*;
    use tokio::time::timeout;

    fn run(test: impl Future<Output = ()>) {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(test);
    }

    fn plan(plan: impl FnMut(Call) -> Fault + 'static) -> Plan {
        Rc::new(RefCell::new(plan))
    }

    /// Keys and values, as somebody believes them who only listens.
    type Belief = BTreeMap<String, Vec<u8>>;

    fn believe(belief: &mut Belief, event: Event) {
        match event {
            Event::Changed(Change::Put(value)) => {
                belief.insert(value.key, value.bytes);
            }
            Event::Changed(Change::Removed { key, .. }) => {
                belief.remove(&key);
            }
            Event::Complete | Event::Cut(_) | Event::Foreign(_) | Event::Lost(_) => {}
        }
    }

    /// Whatever is lost, wiped or compacted: in the end the listener believes what is there.
    #[test]
    fn in_the_end_what_was_told_is_what_there_is() {
        let mut seen = [0; 3];
        for seed in 0..300 {
            run(async {
                let memory = Memory::new(Times::default());
                let mut dice = StdRng::seed_from_u64(seed);
                let mut faults = StdRng::seed_from_u64(seed + 1_000_000);
                let is_bad = Rc::new(RefCell::new(true));
                let bad = Rc::clone(&is_bad);
                let backend = Faulty::new(
                    memory.clone(),
                    plan(move |_| match faults.random_range(0..10) {
                        0 if *bad.borrow() => Fault::Lost,
                        1 if *bad.borrow() => Fault::Unreachable,
                        2 if *bad.borrow() => Fault::Late(Duration::from_millis(50)),
                        _ => Fault::None,
                    }),
                );
                let mut watch = Watch::new(&backend, "to/a/", seed);
                let mut belief = Belief::new();
                for _ in 0..60 {
                    let key = format!("to/a/{}", dice.random_range(0..5));
                    match dice.random_range(0..20) {
                        0 => memory.compact(),
                        1 => memory.wipe(),
                        2..=8 => {
                            let list = memory.list(&key).await.expect("listed");
                            if let Some(value) = list.values.first() {
                                memory.remove(&key, value.revision).await.expect("removed");
                            }
                        }
                        9 => watch.list_again(),
                        n => drop(memory.put(&key, &[n], None).await.expect("put")),
                    }
                    let patience = Duration::from_millis(dice.random_range(0..30));
                    while let Ok(event) = timeout(patience, watch.next()).await {
                        seen[usize::from(matches!(event, Event::Lost(_)))] += 1;
                        believe(&mut belief, event);
                    }
                }
                *is_bad.borrow_mut() = false;
                watch.list_again();
                while let Ok(event) = timeout(Duration::from_secs(3600), watch.next()).await {
                    believe(&mut belief, event);
                }
                let list = memory.list("to/a/").await.expect("listed");
                let there: Belief = list
                    .values
                    .into_iter()
                    .map(|value| (value.key, value.bytes))
                    .collect();
                seen[2] += usize::from(!there.is_empty());
                assert_eq!(belief, there, "seed {seed}");
            });
        }
        assert!(
            seen.iter().all(|count| *count > 100),
            "too little happened: {seen:?}"
        );
    }

    /// All keys but those that end with `junk`.
    fn share() -> Bounds {
        Bounds {
            of_sender: Amount {
                values: 4,
                bytes: 1000,
            },
            most_bytes: 100_000,
            is_read: Rc::new(|key| !key.ends_with("junk")),
        }
    }

    /// Names below each sender, as far as they are told until nothing comes any more; and who is named as cut off.
    async fn told<E: Backend>(watch: &mut Watch<'_, E>, belief: &mut Belief) -> Vec<String> {
        let mut cut = Vec::new();
        while let Ok(event) = timeout(Duration::from_secs(600), watch.next()).await {
            if let Event::Cut(sender) = &event {
                cut.push(sender.clone());
            }
            believe(belief, event);
        }
        cut
    }

    fn count(belief: &Belief, sender: &str) -> usize {
        let below = format!("to/a/{sender}/");
        belief.keys().filter(|key| key.starts_with(&below)).count()
    }

    #[test]
    fn sender_is_read_up_to_its_share_and_further_when_there_is_room() {
        run(async {
            let memory = Memory::new(Times::default());
            let put = async |key: &str, size| {
                let bytes = vec![0; size];
                memory.put(key, &bytes, None).await.expect("put");
            };
            for n in 0..10 {
                put(&format!("to/a/x/{n}"), 1).await;
                put(&format!("to/a/big/{n}"), 400).await;
            }
            put("to/a/y/0", 1).await;
            let mut watch = Watch::new(&memory, "to/a/", 1).within(share());
            let mut belief = Belief::new();
            assert_eq!(told(&mut watch, &mut belief).await, ["big", "x"]);
            let counts = |belief: &Belief| ["x", "big", "y"].map(|one| count(belief, one));
            assert_eq!(counts(&belief), [4, 2, 1]);
            // A sender with more than its share keeps no other from being read.
            put("to/a/x/a", 1).await;
            put("to/a/y/1", 1).await;
            // A value that grows beyond the share goes.
            put("to/a/big/0", 900).await;
            assert_eq!(told(&mut watch, &mut belief).await, [""; 0], "said once");
            assert_eq!(counts(&belief), [4, 1, 2]);
            // Everything is read in the end, and never more than the share.
            let mut seen = 0;
            while let Some(key) = belief.keys().next().cloned() {
                let list = memory.list(&key).await.expect("listed");
                let revision = list.values[0].revision;
                memory.remove(&key, revision).await.expect("removed");
                seen += 1;
                told(&mut watch, &mut belief).await;
                assert!(counts(&belief).iter().all(|count| *count <= 4));
            }
            assert_eq!(seen, 23);
        });
    }

    /// Whatever is lost: in the end each sender is read as far as its share goes, and those within it wholly.
    #[test]
    fn in_the_end_each_sender_is_read_as_far_as_its_share_goes() {
        let mut seen = [0; 2];
        for seed in 0..100 {
            run(async {
                let memory = Memory::new(Times::default());
                let mut dice = StdRng::seed_from_u64(seed);
                let mut faults = StdRng::seed_from_u64(seed + 1_000_000);
                let is_bad = Rc::new(RefCell::new(true));
                let bad = Rc::clone(&is_bad);
                let faulty = plan(move |_| match faults.random_range(0..10) {
                    0 if *bad.borrow() => Fault::Unreachable,
                    1 if *bad.borrow() => Fault::Late(Duration::from_millis(50)),
                    _ => Fault::None,
                });
                let backend = Faulty::new(memory.clone(), faulty);
                let mut watch = Watch::new(&backend, "to/a/", seed).within(share());
                let mut belief = Belief::new();
                for _ in 0..80 {
                    let (sender, n) = (dice.random_range(0..3), dice.random_range(0..8));
                    let key = format!("to/a/{sender}/{n}");
                    match dice.random_range(0..20) {
                        0 => memory.compact(),
                        1 => memory.wipe(),
                        2..=8 => {
                            let list = memory.list(&key).await.expect("listed");
                            if let Some(value) = list.values.first() {
                                memory.remove(&key, value.revision).await.expect("removed");
                            }
                        }
                        9 => watch.list_again(),
                        n => drop(memory.put(&key, &vec![0; n * 20], None).await.expect("put")),
                    }
                    let patience = Duration::from_millis(dice.random_range(0..30));
                    while let Ok(event) = timeout(patience, watch.next()).await {
                        believe(&mut belief, event);
                    }
                    for sender in 0..3 {
                        assert!(count(&belief, &sender.to_string()) <= 4, "seed {seed}");
                    }
                }
                *is_bad.borrow_mut() = false;
                watch.list_again();
                told(&mut watch, &mut belief).await;
                let list = memory.list("to/a/").await.expect("listed");
                let (bounds, known) = (share(), BTreeMap::new());
                let mut sorter = Sorter::new("to/a/", &bounds, &known, bounds.quotas());
                for value in &list.values {
                    sorter.takes(&value.key, value.size());
                }
                let there = list.values.into_iter();
                let mut there: Belief = there.map(|value| (value.key, value.bytes)).collect();
                for (key, bytes) in &belief {
                    assert_eq!(there.remove(key).as_ref(), Some(bytes), "seed {seed}");
                }
                for key in there.into_keys() {
                    let sender = shares::segment("to/a/", &key);
                    assert!(
                        sorter.cut.contains(sender),
                        "{key} is not read, seed {seed}"
                    );
                    assert!(count(&belief, sender) > 0, "seed {seed}");
                }
                seen[usize::from(sorter.cut.is_empty())] += 1;
            });
        }
        assert!(
            seen.iter().all(|count| *count > 10),
            "too little happened: {seen:?}"
        );
    }

    #[test]
    fn keys_that_are_not_read_take_nothing_of_a_share() {
        run(async {
            let memory = Memory::new(Times::default());
            let put = async |key: &str| {
                let key = format!("to/a/x/{key}");
                memory.put(&key, &[0; 900], None).await.expect("put");
            };
            for n in 0..50 {
                put(&format!("{n}junk")).await;
            }
            put("y").await;
            let mut watch = Watch::new(&memory, "to/a/", 1).within(share());
            let mut belief = Belief::new();
            assert_eq!(told(&mut watch, &mut belief).await, [""; 0]);
            assert_eq!(count(&belief, "x"), 1);
            put("zjunk").await;
            let named = timeout(LAG, watch.next()).await;
            assert_eq!(named, Ok(Event::Foreign("to/a/x/zjunk".to_owned())));
        });
    }

    #[test]
    fn what_was_told_is_kept_when_a_list_begins_with_others() {
        run(async {
            let memory = Memory::new(Times::default());
            let mut watch = Watch::new(&memory, "to/a/", 1).within(share());
            let mut belief = Belief::new();
            told(&mut watch, &mut belief).await;
            for key in ["z0", "z1", "z2", "z3", "a0", "a1", "a2", "a3"] {
                let key = format!("to/a/x/{key}");
                memory.put(&key, b"x", None).await.expect("put");
            }
            assert_eq!(told(&mut watch, &mut belief).await, ["x"]);
            watch.list_again();
            let next = timeout(LAG, watch.next()).await;
            assert_eq!(next, Ok(Event::Complete));
            assert!(timeout(LAG, watch.next()).await.is_err());
            assert!(belief.keys().all(|key| key.contains("/z")));
        });
    }

    #[test]
    fn many_senders_are_read_up_to_a_limit_and_all_of_them_in_the_end() {
        run(async {
            let memory = Memory::new(Times::default());
            for n in 0..1500 {
                let key = format!("to/a/{n:04}/x");
                memory.put(&key, &[0; 900], None).await.expect("put");
            }
            let mut watch = Watch::new(&memory, "to/a/", 1).within(share());
            let mut belief = Belief::new();
            assert_eq!(told(&mut watch, &mut belief).await.len(), MOST_CUT);
            let mut seen = 0;
            while let Some(key) = belief.keys().next().cloned() {
                let bytes: usize = belief.values().map(Vec::len).sum();
                assert!(bytes <= 100_000, "{bytes}");
                let list = memory.list(&key).await.expect("listed");
                let revision = list.values[0].revision;
                memory.remove(&key, revision).await.expect("removed");
                seen += 1;
                told(&mut watch, &mut belief).await;
            }
            assert_eq!(seen, 1500);
        });
    }

    #[test]
    fn list_that_tells_less_than_before_is_believed_when_a_second_one_does() {
        run(async {
            let memory = Memory::new(Times::default());
            let put = async || memory.put("to/a/x", b"x", None).await.expect("put");
            put().await;
            let mut watch = Watch::new(&memory, "to/a/", 1);
            assert!(matches!(watch.next().await, Event::Changed(Change::Put(_))));
            assert_eq!(watch.next().await, Event::Complete);
            for is_lost in [false, true] {
                memory.wipe();
                watch.list_again();
                assert!(timeout(LAG / 2, watch.next()).await.is_err());
                if !is_lost {
                    put().await;
                }
                let event = watch.next().await;
                let is_removed = matches!(event, Event::Changed(Change::Removed { .. }));
                assert_eq!(is_removed, is_lost, "{event:?}");
            }
        });
    }

    /// Thousands of nodes that lost a backend together do not come back together, nor in a hot loop.
    #[test]
    fn pauses_grow_and_are_drawn() {
        let tries = |seed: u64| {
            let times = Rc::new(RefCell::new(Vec::new()));
            let noted = Rc::clone(&times);
            run(async move {
                let backend = Faulty::new(
                    Memory::new(Times::default()),
                    plan(move |_| {
                        noted.borrow_mut().push(Instant::now());
                        Fault::Unreachable
                    }),
                );
                let mut watch = Watch::new(&backend, "to/a/", seed);
                assert!(matches!(watch.next().await, Event::Lost(_)));
                let patience = timeout(Duration::from_secs(3600), watch.next()).await;
                assert!(patience.is_err(), "told once");
            });
            let times = times.take();
            let pauses: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            pauses
        };
        let (one, other) = (tries(1), tries(2));
        assert_ne!(one[..5], other[..5]);
        assert!(
            (100..1000).contains(&one.len()),
            "{} tries in an hour",
            one.len()
        );
        assert!(
            one.iter()
                .all(|pause| *pause <= LONGEST_PAUSE + Duration::from_millis(1))
        );
        assert!(one.iter().any(|pause| *pause > LONGEST_PAUSE / 2));
    }

    /// A list is allowed and a watch is not: no hot loop either.
    #[test]
    fn a_feed_that_ends_at_once_is_not_begun_at_once() {
        let count = Rc::new(RefCell::new(0));
        let counted = Rc::clone(&count);
        run(async move {
            let memory = Memory::new(Times::default());
            memory.put("to/a/x", b"x", None).await.expect("put");
            let backend = Faulty::new(
                memory,
                plan(move |call| {
                    *counted.borrow_mut() += u32::from(call == Call::List);
                    if call == Call::Follow {
                        Fault::Unreachable
                    } else {
                        Fault::None
                    }
                }),
            );
            let mut watch = Watch::new(&backend, "to/a/", 1);
            let _ = timeout(Duration::from_secs(3600), async {
                loop {
                    watch.next().await;
                }
            })
            .await;
        });
        assert!(
            (50..1000).contains(&*count.borrow()),
            "{} lists in an hour",
            count.borrow()
        );
    }
}
