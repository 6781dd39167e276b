//! What changes below a prefix, told for as long as it takes: over lost connections, compactions, and an engine that lost its
//! data.
//!
//! A watch lists, and follows from there. Whenever following ends, and whenever it is asked to and the engine does not say that
//! nothing was written since, it lists again and tells the difference to what it told before, removals too. So what is told is at any time what a list would show, however many
//! events the engine lost in between; old etcds lose some.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Change, Engine, Error, Feed, List, Value};

/// The first pause after a failure, at most; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long after a list that tells less than was told the next one is made.
const LAG: Duration = Duration::from_secs(2);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A change.
    Changed(Change),
    /// Everything that there is was told.
    Complete,
    /// The engine cannot be asked at present. Told once each time.
    Lost(Error),
}

/// A watch below a prefix.
pub struct Watch<'e, E: Engine> {
    engine: &'e E,
    prefix: String,
    /// What was told: keys, revisions, and a hash of the bytes, for an engine that began anew may come to the same revision.
    told: BTreeMap<String, (u64, u64)>,
    /// Everything up to this one was told.
    revision: u64,
    /// Of the last list.
    listed: u64,
    feed: Option<E::Feed>,
    /// Whether a list is due though the feed works.
    list_again: bool,
    /// When the next list is due after one that told less than was told.
    behind_until: Option<Instant>,
    ready: VecDeque<Event>,
    /// Since when it follows.
    since: Instant,
    is_lost: bool,
    /// In a row, with no change and little time between them.
    failures: u32,
    dice: StdRng,
}

impl<'e, E: Engine> Watch<'e, E> {
    /// Begins with everything that there is. The seed draws the pauses: nodes that lost an engine together must not come back
    /// together.
    pub fn new(engine: &'e E, prefix: impl Into<String>, seed: u64) -> Self {
        Watch {
            engine,
            prefix: prefix.into(),
            told: BTreeMap::new(),
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

    /// Lists again before it waits for the next change.
    pub fn list_again(&mut self) {
        self.list_again = true;
    }

    /// What comes next. Giving up waiting loses nothing.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            let step = if self.feed.is_none() {
                self.begin().await
            } else if self.list_again {
                self.compare().await
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

    /// Follows no more. What there is to tell of it.
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
        let list = self.list().await?;
        let feed = self.engine.follow(&self.prefix, list.revision).await?;
        self.feed = Some(feed);
        self.since = Instant::now();
        self.is_lost = false;
        self.take(list);
        Ok(())
    }

    /// Lists. A member of a cluster that lags behind tells less than was told for a moment, an engine that began anew
    /// for longer.
    async fn list(&mut self) -> Result<List, Error> {
        loop {
            if let Some(time) = self.behind_until {
                sleep_until(time).await;
            }
            let list = self.engine.list(&self.prefix).await?;
            let is_behind = list.revision < self.revision;
            if !is_behind || self.behind_until.is_some() {
                self.behind_until = None;
                return Ok(list);
            }
            self.behind_until = Some(Instant::now() + LAG);
        }
    }

    async fn compare(&mut self) -> Result<(), Error> {
        if self.engine.newest(&self.prefix) == Some(self.listed) {
            self.list_again = false;
            return Ok(());
        }
        let list = self.list().await?;
        let began_anew = list.revision < self.revision;
        self.take(list);
        // Beside what completes it there is something that the feed should have told: it may be dead.
        if began_anew || self.ready.len() > 1 {
            self.feed = None;
        }
        Ok(())
    }

    async fn follow(&mut self) -> Result<(), Error> {
        let feed = self.feed.as_mut().expect("it follows");
        let change = feed.next().await?;
        self.failures = 0;
        self.revision = self.revision.max(change.revision());
        let known = self.told.get(change.key()).map(|(revision, _)| *revision);
        // What the list told already, what is told twice, and what an old etcd tells after something newer.
        let is_news = match &change {
            Change::Put(_) => known.is_none_or(|known| known < change.revision()),
            Change::Removed { .. } => known.is_some_and(|known| known < change.revision()),
        };
        if is_news {
            self.tell(change);
        }
        Ok(())
    }

    /// Tells in what way a list differs from what was told.
    fn take(&mut self, list: List) {
        self.list_again = false;
        if list.revision < self.revision {
            // The engine began anew: what its revisions meant is over. Nothing that it holds is known.
            self.told.values_mut().for_each(|told| *told = (0, 0));
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
            self.tell(Change::Removed {
                key,
                revision: list.revision,
            });
        }
        for value in list.values {
            if self.told.get(&value.key) != Some(&mark(&value)) {
                self.tell(Change::Put(value));
            }
        }
        self.ready.push_back(Event::Complete);
    }

    fn tell(&mut self, change: Change) {
        match &change {
            Change::Put(value) => self.told.insert(value.key.clone(), mark(value)),
            Change::Removed { key, .. } => self.told.remove(key),
        };
        self.ready.push_back(Event::Changed(change));
    }

    fn pause(&mut self) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(16));
        self.dice
            .random_range(Duration::ZERO..=doubled.min(LONGEST_PAUSE))
    }
}

/// Whom a watch tells, and which of theirs it is.
#[derive(Debug, Clone)]
pub struct Tell(pub usize, pub UnboundedSender<(usize, Event)>);

impl Tell {
    /// Tells it; nothing if nobody hears it any more.
    pub fn tell(&self, event: Event) {
        let _ = self.1.send((self.0, event));
    }
}

/// Tells all that a watch tells, and has it list again when that is wanted.
pub async fn watch<E: Engine>(
    engine: &E,
    prefix: String,
    again: &Notify,
    tell: Tell,
) -> Infallible {
    let mut watch = Watch::new(engine, prefix, rand::rng().random());
    loop {
        tokio::select! {
            event = watch.next() => tell.tell(event),
            () = again.notified() => watch.list_again(),
        }
    }
}

fn mark(value: &Value) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    hasher.write(&value.bytes);
    (value.revision, hasher.finish())
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
            Event::Complete | Event::Lost(_) => {}
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
                let engine = Faulty::new(
                    memory.clone(),
                    plan(move |_| match faults.random_range(0..10) {
                        0 if *bad.borrow() => Fault::Lost,
                        1 if *bad.borrow() => Fault::Unreachable,
                        2 if *bad.borrow() => Fault::Late(Duration::from_millis(50)),
                        _ => Fault::None,
                    }),
                );
                let mut watch = Watch::new(&engine, "to/a/", seed);
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

    /// Thousands of nodes that lost an engine together do not come back together, nor in a hot loop.
    #[test]
    fn pauses_grow_and_are_drawn() {
        let tries = |seed: u64| {
            let times = Rc::new(RefCell::new(Vec::new()));
            let noted = Rc::clone(&times);
            run(async move {
                let engine = Faulty::new(
                    Memory::new(Times::default()),
                    plan(move |_| {
                        noted.borrow_mut().push(Instant::now());
                        Fault::Unreachable
                    }),
                );
                let mut watch = Watch::new(&engine, "to/a/", seed);
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
            let engine = Faulty::new(
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
            let mut watch = Watch::new(&engine, "to/a/", 1);
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
