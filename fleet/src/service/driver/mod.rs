//! Drives the steps: gives them what happened, and carries out what is to be done.

/// What the link tells.
mod backend;
/// Beats of this node and of others.
mod beats;
/// What runs have left is told.
mod events;
/// Locks for which this node is a candidate.
mod locks;
/// What this node tells of itself.
mod node;
/// Which nodes there are.
mod nodes;
/// Who asks, and what they are told.
mod people;
/// Requests that wait on disk.
mod requests;
/// Triggers that wait for their turn in a rolling run.
mod rolling;
/// Events that meet rules.
mod rules;
/// What became of triggers that were accepted.
mod runs;
/// Runs that wait for a slot.
mod slots;
/// How the service does, in numbers.
mod tally;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tracing::{error, info, warn};

use again_base::model::{Boottime, Identity, Usage, Walltime};
use again_base::sys::clock;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use super::beats::Beats;
use super::callers::Callers;
use super::executor;
use super::failures::Failures;
use super::holders;
use super::keep::Keep;
use super::last_inventory;
use super::link::{Call, Order, Then};
use super::listener::Connection;
use super::locks::Locks;
use super::newest;
use super::nodes::{Nodes, Shown};
use super::positions::Positions;
use super::publisher::EventPublisher;
use super::reactions::Reactions;
use super::requests::Requests;
use super::runs::Runs;
use super::slots::Slots;
use super::small_map::SmallMap;
use super::tally::Tally;
use crate::ask::Question;
use crate::backend::Error;
use crate::policy::accept::Who;
use crate::policy::judge::Rules;
use crate::policy::newest::Ignored;
use crate::policy::replay::TriggerKey;
use crate::policy::rolling::Count;
use crate::policy::rule::Rule;
use crate::seal::{Seals, hash};
use crate::settings::{Backend, Settings};
use crate::spool::{self, Spool};
use crate::step::model::{Action, Answer, Client, Draft, EntryId, Event, Handed, Place, State};
use crate::step::{step, wakes};
use crate::wire::envelope;
use crate::wire::key::Key;
use crate::wire::name::{Name, Namespace, Node};
use crate::wire::outcome::Outcome;

/// How long a value stays at least.
const LEAST_TTL: Duration = Duration::from_secs(60);
/// How long a story is told.
const STORY: Duration = Duration::from_secs(86_400);

/// What happens to this service beside what its link tells.
#[derive(Debug)]
pub enum Note {
    /// Somebody comes in.
    Came(Connection),
    /// They ask for something.
    Asked(Client, Question),
    /// They are gone.
    Left(Client),
    /// What came of a hand-over: the answers, and why some are missing.
    Handed(Vec<Answer>, Option<String>),
    /// There is more of a list to show.
    More,
    /// The backend has had its time to show its nodes to somebody.
    Late(Client),
    /// What became of triggers that were taken, as far as it is known.
    Became(io::Result<executor::Became>),
    /// A waiter or run of something accepted has ended.
    ProcessEnded,
    /// A run has left events, or a command a request.
    Rung,
    /// The executor has answered that it marked files of the spool, or could not be asked.
    Marked(io::Result<()>),
    /// A run that had a slot of this group, or waited for one, has ended.
    RunEnded(Name, Identity),
}

/// What is done with an answer of the backend's.
pub type Reply = Box<dyn FnOnce(&mut Driver)>;

/// Continues with an answer of the backend's.
fn then<T: 'static>(act: impl FnOnce(&mut Driver, Result<T, Error>) + 'static) -> Then<Reply, T> {
    Box::new(move |answer| Box::new(move |driver: &mut Driver| act(driver, answer)))
}

/// Where a driver reaches out to.
pub struct Ways {
    /// The link to the backend.
    pub orders: UnboundedSender<Order<Reply>>,
    /// Back to whoever drives it.
    pub notes: UnboundedSender<Note>,
    /// The socket of the executor.
    pub take: PathBuf,
}

impl Ways {
    /// Tells that a run has ended.
    fn run_ended(&self, group: &Name, who: Identity) -> holders::Ended {
        let (notes, group) = (self.notes.clone(), group.clone());
        Box::new(move || drop(notes.send(Note::RunEnded(group, who))))
    }
}

/// The service's state, and all that its steps act upon.
pub struct Driver {
    state: State,
    /// How the service does, for whoever asks.
    pub health: Health,
    /// Who asks.
    pub callers: Callers,
    seals: Seals,
    keep: Keep,
    me: Node,
    /// Hash of what this service put last at its node's own key.
    own_value: Option<[u8; 32]>,
    namespace: Namespace,
    began: Walltime,
    ways: Ways,
    /// Senders of more triggers than are read, which were named.
    cut: BTreeSet<Node>,
    /// What is to be put, together, when all that has happened is dealt with.
    outgoing: Vec<Outgoing>,
    runs: Runs,
    /// Waiters and runs of what was accepted: a task for each, which ends with it.
    processes: JoinSet<()>,
    /// What has yet to be shown of lists, and to whom.
    lists: VecDeque<Shown>,
    nodes: Nodes,
    publisher: EventPublisher,
    requests: Requests,
    /// Whether the disk has kept all entries of the request that is being sent.
    is_kept: bool,
    tally: Tally,
    reactions: Reactions,
    slots: Slots,
    slots_file: holders::File,
    newest_file: newest::File,
    /// The triggers that wait for their turn in a rolling run.
    turns: BTreeSet<TriggerKey>,
    /// Counts of failed targets for those whose turn has come, and when each is continued.
    counts: SmallMap<TriggerKey, (Count, Option<Boottime>)>,
    /// Those that came, and how many run at a time.
    queued: Vec<(TriggerKey, u32)>,
    locks: Locks,
    beats: Beats,
    /// Who may take places away, and move locks.
    pub operators: Vec<Who>,
}

/// A version of an entry on its way out, as it stood when that was decided.
struct Outgoing {
    entry: EntryId,
    version: u64,
    key: Key,
    until: Walltime,
    draft: Result<envelope::Draft, String>,
}

/// What there is to say of the service.
#[derive(Debug, Default)]
pub struct Health {
    /// The backend.
    pub backend: Backend,
    /// Whether it is reached.
    pub is_up: bool,
    /// Since when.
    pub since: Walltime,
    /// Why it is not reached.
    pub why: String,
    /// Failures of its work.
    pub failures: Failures,
    /// Why the disk does not keep what is to be kept.
    pub not_kept: Option<String>,
    /// Why the executor did not answer.
    pub take: Option<String>,
    /// How much in the backend was not what it should be, or not from whom this node listens to.
    pub rejected: u64,
}

impl Driver {
    /// One that begins with this state.
    ///
    /// # Errors
    /// This node has no name.
    pub fn new(
        mut state: State,
        keep: Keep,
        mut seals: Seals,
        settings: &Settings,
        ways: Ways,
    ) -> Result<Driver, Usage> {
        let began = clock::walltime();
        // The service before this one may have had something taken.
        let mut runs = Runs::default();
        runs.soon(clock::boottime());
        let directory = settings.state_dir.join("serve");
        let (tally, told) = Tally::open(&directory);
        let (slots_file, slots) = holders::File::open(
            &directory,
            settings.backend.supports_slots(),
            |group, run| ways.run_ended(group, run),
        );
        let me = settings.certname()?.clone();
        let (newest_file, newest) = newest::File::open(&directory);
        state.continue_from(newest.of(&me).unwrap_or(0));
        seals.newest = newest;
        Ok(Driver {
            locks: Locks::read(me.clone(), &slots_file.locks()),
            beats: Beats::new(me.clone()),
            slots,
            slots_file,
            newest_file,
            operators: settings.operators.clone(),
            state,
            health: Health {
                backend: settings.backend,
                since: began,
                why: "it was not reached yet".to_owned(),
                ..Health::default()
            },
            callers: Callers::default(),
            seals,
            keep,
            me,
            own_value: None,
            namespace: settings.namespace.clone(),
            began,
            ways,
            cut: BTreeSet::new(),
            outgoing: Vec::new(),
            runs,
            processes: JoinSet::new(),
            lists: VecDeque::new(),
            nodes: Nodes::new(last_inventory::File::new(
                &directory,
                settings.namespace.clone(),
            )),
            publisher: EventPublisher::new(
                Spool(settings.spool_dir.clone()),
                Positions::open(&directory),
                told,
                clock::boottime(),
            ),
            requests: Requests::new(spool::requests::Requests::beside(&settings.spool_dir)),
            is_kept: true,
            tally,
            reactions: Reactions::default(),
            turns: BTreeSet::new(),
            counts: SmallMap::default(),
            queued: Vec::new(),
        })
    }

    /// When a tick is wanted.
    pub fn wakes(&self) -> Option<Boottime> {
        let events = self.publisher.wakes().filter(|_| self.health.is_up);
        let rules = self.reactions.due().filter(|_| self.health.is_up);
        let others = self.runs.due().into_iter().chain(events).chain(rules);
        let others = others.chain(self.slots.wakes()).chain(self.locks.wakes());
        let others = others.chain(self.next_look());
        wakes(&self.state).into_iter().chain(others).min()
    }

    /// Judges by other rules from now on, and reacts by others.
    pub fn rule(&mut self, rules: Rules, reactions: Vec<Rule>) {
        let locks = rules.locks.clone();
        self.state.rules = rules;
        self.reactions.rules = reactions;
        self.feed(Event::Changed);
        self.lock(&locks);
    }

    /// Signs and verifies by these from now on.
    pub fn sign_by(&mut self, mut seals: Seals) {
        seals.newest = std::mem::take(&mut self.seals.newest);
        self.seals = seals;
    }

    /// Something happened. What is to be put is sent by [`Driver::flush`].
    pub fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in step(&mut self.state, event, &clock::moment()) {
                self.perform(action, &mut events);
            }
        }
    }

    fn perform(&mut self, action: Action, events: &mut VecDeque<Event>) {
        match action {
            Action::Keep(drafts) => events.extend(drafts.into_iter().map(|draft| self.keep(draft))),
            Action::Put {
                entry,
                version,
                key,
                until,
            } => {
                let content = self.state.entry(&entry);
                let draft = content.ok_or_else(|| "it was let go".to_owned());
                let draft = draft
                    .and_then(|content| self.seals.draft(content, &key).map_err(|e| e.to_string()));
                self.outgoing.push(Outgoing {
                    entry,
                    version,
                    key,
                    until,
                    draft,
                });
            }
            Action::KeepNumbers(numbers) => {
                if let Err(e) = self.keep.put_numbers(numbers) {
                    warn!("cannot store the numbers of triggers: {e}");
                }
            }
            Action::Forget { entry, number } => {
                if let Err(e) = self.keep.forget(&entry, number) {
                    error!("{entry} stays in the outbox: {e}");
                }
            }
            Action::HandOver(places) => self.hand_over(&places),
            Action::Queue(which, parallel) => self.queued.push((which, parallel)),
            Action::Remove { place, revision } => self.remove(place, revision),
            Action::Say(client, said) => {
                let Health {
                    backend,
                    is_up,
                    why,
                    ..
                } = &self.health;
                let away = (!is_up).then_some(why.as_str());
                self.callers.said(client, &said, *backend, away);
            }
            Action::Progress { id, target, news } => self.callers.progress(&(id, target), &news),
            Action::ReadNodes => self.read_nodes(),
            Action::Info(text) => info!("{text}"),
            Action::Note(text) => warn!("{text}"),
            Action::Rejected(why) => self.reject(&why),
        }
    }

    /// Counts what nobody may have put into the backend, and says so.
    fn reject(&mut self, why: &str) {
        self.health.rejected += 1;
        warn!("{why}");
    }

    /// Says once why a value counts for nothing.
    fn ignore(&mut self, key: &str, ignored: &Ignored) {
        if ignored.is_news {
            self.reject(&format!("{key} is ignored: {}", ignored.why));
        }
    }

    fn keep(&mut self, draft: Draft) -> Event {
        // What nobody would read is not promised either.
        let checked = self.seals.check(&draft.content).map_err(|e| e.to_string());
        let kept = checked.and_then(|()| {
            let put = self.keep.put(&draft).map_err(|e| e.to_string());
            self.is_kept &= put.is_ok();
            put
        });
        self.health.not_kept = kept.clone().err();
        let Draft { entry, version, .. } = draft;
        Event::Kept {
            entry,
            version,
            kept,
        }
    }

    fn order(&self, call: Call<Reply>) {
        // The link outlives the driver.
        let _ = self.ways.orders.send(Order::Call(call));
    }

    fn hand_over(&self, places: &[(Place, u64)]) {
        let values = places.iter();
        let values = values.filter_map(|(place, _)| self.state.evidence(place));
        let values: Vec<Handed> = values.collect();
        let (socket, notes) = (self.ways.take.clone(), self.ways.notes.clone());
        tokio::spawn(async move {
            let (answers, why) = executor::hand_over(&socket, values).await;
            let _ = notes.send(Note::Handed(answers, why));
        });
    }

    /// Those who take have answered, all or some, or nothing.
    pub fn handed(&mut self, answers: Vec<Answer>, why: Option<String>) {
        self.health.take.clone_from(&why);
        self.reacted(&answers);
        if answers
            .iter()
            .any(|answer| answer.outcome == Outcome::Taken)
        {
            self.runs.soon(clock::boottime());
        }
        match why {
            Some(why) if answers.is_empty() => self.feed(Event::NotHanded(why)),
            why => {
                if let Some(why) = why {
                    warn!("not everything could be handed over: {why}");
                }
                self.feed(Event::Answers(answers));
            }
        }
    }

    /// Signs all that is to be put, once, and sends it off.
    pub fn flush(&mut self) {
        self.roll();
        while !self.outgoing.is_empty() {
            let (mut ready, mut drafts) = (Vec::new(), Vec::new());
            for mut one in std::mem::take(&mut self.outgoing) {
                match std::mem::replace(&mut one.draft, Err(String::new())) {
                    Ok(draft) => {
                        drafts.push(draft);
                        ready.push(one);
                    }
                    Err(why) => self.not_put(one, why),
                }
            }
            match self.seals.seal(&drafts) {
                Ok(sealed) => {
                    let sealed = ready.into_iter().zip(sealed);
                    sealed.for_each(|(one, bytes)| self.put(one, bytes));
                }
                Err(e) => ready
                    .into_iter()
                    .for_each(|one| self.not_put(one, e.to_string())),
            }
        }
    }

    fn not_put(&mut self, one: Outgoing, why: String) {
        let Outgoing {
            entry,
            version,
            key,
            ..
        } = one;
        error!("{entry} cannot be sent: {why}");
        self.feed(Event::Put {
            entry,
            version,
            key,
            answer: Err(why),
        });
    }

    fn put(&mut self, one: Outgoing, bytes: Vec<u8>) {
        let Outgoing {
            entry,
            version,
            key,
            until,
            ..
        } = one;
        let left = until.since(clock::walltime());
        let least = match key {
            Key::Story { .. } | Key::Targets { .. } => STORY,
            // Nothing is gone before somebody can have seen it.
            _ => LEAST_TTL,
        };
        let ttl = Duration::from_nanos(left.nanos()).max(least);
        let is_own = entry == EntryId::Node;
        if is_own {
            self.own_value = Some(hash(&bytes));
        }
        // What this node tells of itself stays.
        let ttl = (!is_own).then_some(ttl);
        let needs_room = false;
        let at = key.clone();
        let then = then(move |driver, answer| driver.entry_put(entry, version, at, answer));
        self.order(Call::Put {
            key,
            bytes,
            ttl,
            needs_room,
            then,
        });
    }

    /// Reads certificates and revocation lists anew if they have changed. What was held because of them is judged again.
    pub fn look_at_files(&mut self) {
        match self.seals.refresh() {
            Ok(false) => {}
            Ok(true) => {
                info!("the certificates were read anew");
                self.feed(Event::Changed);
            }
            Err(why) => warn!("the certificates of before still count: {why}"),
        }
    }
}
