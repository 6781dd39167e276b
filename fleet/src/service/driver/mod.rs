//! Driver of the steps: feeds them events, and performs their actions.

/// News from the link.
mod backend;
/// Beats of this node and of others.
mod beats;
/// Events of runs.
mod events;
/// Locks for which this node is a candidate.
mod locks;
/// Inventory of this node.
mod node;
/// Inventories of all nodes.
mod nodes;
/// Clients, their requests, and the answers.
mod people;
/// Requests that wait on disk.
mod requests;
/// Triggers that wait for their turn in a rolling run.
mod rolling;
/// Events that match rules.
mod rules;
/// Outcomes of accepted triggers.
mod runs;
/// Runs that wait for a slot.
mod slots;
/// Numbers for `again metrics`.
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

/// Shortest time that a value stays in the backend.
const LEAST_TTL: Duration = Duration::from_secs(60);
/// Shortest time that stories and lists of targets stay in the backend.
const STORY: Duration = Duration::from_secs(86_400);

/// Notification for the service from anything but its link.
#[derive(Debug)]
pub enum Note {
    /// A client has connected.
    Came(Connection),
    /// A client asks a question.
    Asked(Client, Question),
    /// A client has disconnected.
    Left(Client),
    /// Result of sending triggers to the executor: the answers, and why some are missing.
    Handed(Vec<Answer>, Option<String>),
    /// A list has another portion to show.
    More,
    /// The time in which the backend should have shown its nodes to this client is over.
    Late(Client),
    /// Outcomes of accepted triggers, as far as the executor knows them.
    Became(io::Result<executor::Became>),
    /// A waiter or run of an accepted trigger has ended.
    ProcessEnded,
    /// A run has stored events, or a command a request.
    Rung,
    /// The executor has marked files of the spool, or did not answer.
    Marked(io::Result<()>),
    /// A run that had a slot of this group, or waited for one, has ended.
    RunEnded(Name, Identity),
}

/// Continuation with an answer of the backend.
pub type Reply = Box<dyn FnOnce(&mut Driver)>;

/// Reply that continues with an answer of the backend.
fn then<T: 'static>(act: impl FnOnce(&mut Driver, Result<T, Error>) + 'static) -> Then<Reply, T> {
    Box::new(move |answer| Box::new(move |driver: &mut Driver| act(driver, answer)))
}

/// Ways from the driver to other tasks and to the executor.
pub struct Ways {
    /// Orders for the link to the backend.
    pub orders: UnboundedSender<Order<Reply>>,
    /// Notifications for the driver's own loop.
    pub notes: UnboundedSender<Note>,
    /// Socket of the executor.
    pub executor: PathBuf,
}

impl Ways {
    /// Callback that notifies the driver of the end of a run.
    fn run_ended(&self, group: &Name, who: Identity) -> holders::Ended {
        let (notes, group) = (self.notes.clone(), group.clone());
        Box::new(move || drop(notes.send(Note::RunEnded(group, who))))
    }
}

/// State of the service, and everything on which its actions work.
pub struct Driver {
    state: State,
    /// Health of the service.
    pub health: Health,
    /// Connected clients.
    pub callers: Callers,
    seals: Seals,
    keep: Keep,
    me: Node,
    /// Hash of the value that this service put last at its node's own key.
    own_value: Option<[u8; 32]>,
    namespace: Namespace,
    began: Walltime,
    ways: Ways,
    /// Senders of more triggers than are read that were logged.
    cut: BTreeSet<Node>,
    /// Versions of entries that [`Driver::flush`] signs together and puts.
    outgoing: Vec<Outgoing>,
    runs: Runs,
    /// Tasks that each wait for the end of a waiter or run of an accepted trigger.
    processes: JoinSet<()>,
    /// Lists with portions that are still to be shown, and their clients.
    lists: VecDeque<Shown>,
    nodes: Nodes,
    publisher: EventPublisher,
    requests: Requests,
    /// Whether the disk has stored all entries of the request that is being sent.
    is_kept: bool,
    tally: Tally,
    reactions: Reactions,
    slots: Slots,
    slots_file: holders::File,
    newest_file: newest::File,
    /// Triggers that wait for their turn in a rolling run.
    turns: BTreeSet<TriggerKey>,
    /// Counts of failed targets for triggers whose turn has come, and the uptime at which each
    /// count continues.
    counts: SmallMap<TriggerKey, (Count, Option<Boottime>)>,
    /// Triggers that are to be queued for their turn, and the number of nodes that run in parallel.
    queued: Vec<(TriggerKey, u32)>,
    locks: Locks,
    beats: Beats,
    /// Nodes that may release slots of others, and move or reset locks.
    pub operators: Vec<Who>,
}

/// Version of an entry that is to be put, with its content at that time.
struct Outgoing {
    entry: EntryId,
    version: u64,
    key: Key,
    until: Walltime,
    draft: Result<envelope::Draft, String>,
}

/// Health of the service, for status, metrics and checks.
#[derive(Debug, Default)]
pub struct Health {
    /// Configured backend.
    pub backend: Backend,
    /// Whether the backend is reached.
    pub is_up: bool,
    /// Time since which it is reached, or is not.
    pub since: Walltime,
    /// Reason why it is not reached.
    pub why: String,
    /// Failures of the service's work.
    pub failures: Failures,
    /// Error of the last attempt to store an entry in the outbox.
    pub not_kept: Option<String>,
    /// Why the executor did not answer when triggers were last sent to it, or not for all of them.
    pub executor: Option<String>,
    /// Number of values in the backend that were invalid, or from nodes that this node does not
    /// accept.
    pub rejected: u64,
}

impl Driver {
    /// Driver that starts with this state.
    ///
    /// # Errors
    /// The settings give no certname for this node.
    pub fn new(
        mut state: State,
        keep: Keep,
        mut seals: Seals,
        settings: &Settings,
        ways: Ways,
    ) -> Result<Driver, Usage> {
        let began = clock::walltime();
        // The service before this one may have had triggers that were accepted.
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

    /// Uptime at which a tick is wanted.
    pub fn wakes(&self) -> Option<Boottime> {
        let events = self.publisher.wakes().filter(|_| self.health.is_up);
        let rules = self.reactions.due().filter(|_| self.health.is_up);
        let others = self.runs.due().into_iter().chain(events).chain(rules);
        let others = others.chain(self.slots.wakes()).chain(self.locks.wakes());
        let others = others.chain(self.next_look());
        wakes(&self.state).into_iter().chain(others).min()
    }

    /// Replaces the rules for triggers, and the rules for events.
    pub fn rule(&mut self, rules: Rules, reactions: Vec<Rule>) {
        let locks = rules.locks.clone();
        self.state.rules = rules;
        self.reactions.rules = reactions;
        self.feed(Event::Changed);
        self.lock(&locks);
    }

    /// Replaces the certificates with which this node signs and verifies.
    pub fn sign_by(&mut self, mut seals: Seals) {
        seals.newest = std::mem::take(&mut self.seals.newest);
        self.seals = seals;
    }

    /// Handles an event. Entries that are to be put are sent by [`Driver::flush`].
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

    /// Logs and counts a value that nobody may have put into the backend.
    fn reject(&mut self, why: &str) {
        self.health.rejected += 1;
        warn!("{why}");
    }

    /// Logs once why a value is ignored.
    fn ignore(&mut self, key: &str, ignored: &Ignored) {
        if ignored.is_news {
            self.reject(&format!("{key} is ignored: {}", ignored.why));
        }
    }

    fn keep(&mut self, draft: Draft) -> Event {
        // An entry that no node could read is not stored either.
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
        let (socket, notes) = (self.ways.executor.clone(), self.ways.notes.clone());
        tokio::spawn(async move {
            let (answers, why) = executor::hand_over(&socket, values).await;
            let _ = notes.send(Note::Handed(answers, why));
        });
    }

    /// Handles the answers of the executor: all, some, or none.
    pub fn handed(&mut self, answers: Vec<Answer>, why: Option<String>) {
        self.health.executor.clone_from(&why);
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

    /// Signs all entries that are to be put together, and sends them.
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
            // No value is gone before the nodes can have seen it.
            _ => LEAST_TTL,
        };
        let ttl = Duration::from_nanos(left.nanos()).max(least);
        let is_own = entry == EntryId::Node;
        if is_own {
            self.own_value = Some(hash(&bytes));
        }
        // The inventory of this node stays.
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

    /// Reads certificates and revocation lists again if they have changed. Triggers that were held
    /// because of them are judged again.
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
