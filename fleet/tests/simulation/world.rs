//! World of nodes, a backend, a network and a clock, in which one event happens at a time.

use std::collections::{BTreeMap, BTreeSet};

use again_base::model::{Boottime, Moment, Span, Walltime};
use again_fleet::outbox::Outbox;
use again_fleet::policy::accept::Accept;
use again_fleet::policy::fire::Request;
use again_fleet::policy::judge::Rules;
use again_fleet::policy::replay::TriggerKey;
use again_fleet::step::model::{
    Action, Client, Content, Draft, EntryId, Event, Place, SelectionState, State,
};
use again_fleet::step::{step, wakes};
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::key::Key;
use again_fleet::wire::lineage::Lineage;
use again_fleet::wire::name::{Id, Name, Node};
use again_fleet::wire::trigger::Ask;

use crate::backend::{Backend, Value};
use crate::disk::CrashDisk;
use crate::executor::Ledger;
use crate::facts::Reader;
use crate::promises::Promises;
use crate::rolling::Waiter;
use crate::seal;
use crate::tool::Tool;
use again_test_support::Dice;

pub const SECOND: u64 = 1000;
pub const MINUTE: u64 = 60 * SECOND;
/// Wall clock when the simulation begins.
pub const EPOCH: u64 = 1_800_000_000_000;

/// Protocol with a deliberate error, which the checks must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The sender removes a trigger when it is handed over.
    RemovesFirst,
    /// No executor remembers numbers.
    ForgetsNumbers,
    /// A run that was not started for a trigger does not carry on the hops of the triggers that it
    /// satisfied.
    LosesSatisfied,
    /// A target of a rolling run ignores failures.
    IgnoresFailures,
    /// A reader forgets the nodes that the backend has lost.
    ForgetsLostNodes,
    /// A reader accepts facts older than those that it has read before.
    TakesOlderFacts,
    /// Selections are resolved without one node.
    HidesNodes,
    /// Requests on disk are removed before they are sent.
    LosesRequests,
}

/// Probabilities of faults, out of 100,000.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// A service is killed before an action.
    pub crash: u64,
    /// The machine loses power while the outbox is written.
    pub power: u64,
    /// The executor is killed at one of its steps.
    pub take: u64,
    /// The disk cannot store the executor's ledger.
    pub refuse: u64,
    /// A request, an answer or an event is lost.
    pub lose: u64,
    /// A request arrives long after it was given up.
    pub late: u64,
}

/// Trigger that the runs of a node send.
#[derive(Debug, Clone)]
pub struct Notify {
    pub targets: Vec<Node>,
    pub name: Name,
    /// Probability per run, out of a thousand.
    pub permille: u64,
}

#[derive(Debug, Clone)]
pub enum Op {
    Put(Vec<u8>, u64),
    Remove(u64),
}

#[derive(Debug, Clone)]
pub enum Call {
    Put {
        entry: EntryId,
        version: u64,
        key: Key,
    },
    Remove {
        place: Place,
        revision: u64,
    },
}

/// Event that will happen on a node.
#[derive(Debug, Clone)]
pub enum Ev {
    /// Input for the service, in this life of it.
    Service(u64, Event),
    Tick(u64),
    Connect(u64),
    /// The service's connection turns out to be dead.
    Cut(u64, u64),
    /// The service lists its triggers again, as with every beat of its lease.
    Beat(u64, u64),
    Watch(u64, u64, Key, Option<Value>),
    /// A request reaches this life of the backend.
    Arrive(u64, u64, u64, Key, Op),
    /// An answer with the revision of a write; nothing if none came in time.
    Reply(u64, u64, Option<u64>),
    Take(u64, Vec<Vec<u8>>),
    /// The node checks the rolling runs of which it is a target.
    Roll(u64),
    StartService,
    PowerOn,
    /// The tool checks whether a run is due.
    Tool,
    RunEnds(u64),
    /// A run starts that no trigger has asked for.
    Cron,
    /// A person sends or cancels a trigger.
    Person,
    /// The service is down, and a command leaves a request on disk.
    Leave,
    /// The executor removes a request from the disk, if this life of the service still lasts.
    Removed(u64, Id),
    /// The backend comes back.
    BackendUp,
    /// The network works again, the clock is right, and the node is enabled.
    Mended,
    /// A fault happens somewhere.
    Fault,
}

pub struct Service {
    pub state: State,
    pub life: u64,
    pub outbox: Outbox<CrashDisk>,
    /// Number of the connection, and the life of the backend that it leads to.
    pub connection: Option<(u64, u64)>,
    pub known: BTreeSet<Place>,
    pub calls: BTreeMap<u64, Call>,
    pub watched: u64,
    pub ticks: Option<u64>,
    pub history: usize,
    /// Time at which the service connected.
    pub reached: u64,
    /// Triggers that wait for their turn.
    pub waiters: BTreeMap<TriggerKey, Waiter>,
    pub rolls: Option<u64>,
}

/// Request that waits on disk for the service.
#[derive(Debug, Clone)]
pub struct Left {
    pub request: Request,
    /// Node's wall clock when the request was left.
    pub at: Walltime,
    /// End of the ttl with which the request was last sent, in milliseconds.
    pub ends: Option<u64>,
}

pub struct Machine {
    pub name: Node,
    pub rules: Rules,
    pub is_on: bool,
    pub is_gone: bool,
    pub is_reachable: bool,
    pub boot: u64,
    pub booted: u64,
    /// Error of the clock, in milliseconds.
    pub clock: i64,
    pub was_clock_wrong: bool,
    pub disk: CrashDisk,
    pub ledger: Ledger,
    pub tool: Tool,
    pub service: Option<Service>,
    pub manifest: Vec<Notify>,
    pub run_length: u64,
    /// Triggers for which the node has queue positions in rolling runs.
    pub places: BTreeSet<TriggerKey>,
    pub reader: Reader,
    pub left: Vec<Left>,
    /// Number of changes of the node's facts.
    pub facts: u64,
}

pub struct World {
    pub now: u64,
    pub dice: Dice,
    pub odds: Odds,
    pub mutant: Option<Mutant>,
    /// Whether every step is printed.
    pub is_traced: bool,
    pub backend: Backend,
    pub machines: Vec<Machine>,
    pub promises: Promises,
    /// Whether nodes publish facts and read those of others.
    pub has_facts: bool,
    /// Earlier values of keys that only their own node may write.
    pub past: Vec<(Key, Vec<u8>)>,
    /// Longest ttl of any request.
    pub most_ttl: u64,
    pub queue: BTreeMap<(u64, u64), (usize, Ev)>,
    pub count: u64,
    pub index: BTreeMap<Node, usize>,
    pub truths: BTreeMap<Id, Option<Lineage>>,
    pub clients: BTreeMap<Client, Id>,
    pub recent: Vec<Id>,
}

impl World {
    pub fn new(dice: Dice, names: Vec<Node>, hop_limit: usize) -> World {
        let machine = |name: &Node| Machine {
            name: name.clone(),
            rules: Rules {
                me: name.clone(),
                accept: Accept {
                    // Manifests notify their own nodes too, which "*" does not match.
                    from: ["*", name.as_str()]
                        .map(|from| from.parse().expect("a pattern"))
                        .to_vec(),
                    on_behalf: Vec::new(),
                },
                skew: Span::from_secs(300),
                hop_limit,
                locks: Vec::new(),
            },
            is_on: true,
            is_gone: false,
            is_reachable: true,
            boot: 0,
            booted: 0,
            clock: 0,
            was_clock_wrong: false,
            disk: CrashDisk::default(),
            ledger: Ledger::default(),
            tool: Tool::default(),
            service: None,
            manifest: Vec::new(),
            run_length: SECOND,
            places: BTreeSet::new(),
            reader: Reader::default(),
            left: Vec::new(),
            facts: 0,
        };
        let mut world = World {
            now: 0,
            dice,
            odds: Odds::default(),
            mutant: None,
            is_traced: std::env::var_os("AGAIN_FLEET_TRACE").is_some(),
            backend: Backend::default(),
            machines: names.iter().map(machine).collect(),
            promises: Promises::default(),
            has_facts: false,
            past: Vec::new(),
            most_ttl: 0,
            queue: BTreeMap::new(),
            count: 0,
            index: names
                .into_iter()
                .enumerate()
                .map(|(n, name)| (name, n))
                .collect(),
            truths: BTreeMap::new(),
            clients: BTreeMap::new(),
            recent: Vec::new(),
        };
        world.backend.start();
        for n in 0..world.machines.len() {
            let delay = world.dice.below(SECOND);
            world.after(delay, n, Ev::StartService);
        }
        world
    }

    pub fn after(&mut self, delay: u64, n: usize, event: Ev) {
        self.count += 1;
        self.queue
            .insert((self.now + delay, self.count), (n, event));
    }

    /// Cancels all further faults.
    pub fn cancel_faults(&mut self) {
        self.queue
            .retain(|_, (_, event)| !matches!(event, Ev::Fault));
    }

    pub fn odds(&mut self, times: u64) -> bool {
        times > 0 && self.dice.below(100_000) < times
    }

    /// Lets the next event happen if it is due before `end`.
    pub fn next(&mut self, end: u64) -> bool {
        let Some(entry) = self
            .queue
            .first_entry()
            .filter(|entry| entry.key().0 <= end)
        else {
            self.now = end;
            return false;
        };
        self.now = entry.key().0;
        let (n, event) = entry.remove();
        self.happen(n, event);
        true
    }

    pub fn moment(&self, n: usize) -> Moment {
        let machine = &self.machines[n];
        Moment {
            boot: machine.boot.to_string(),
            uptime: Boottime::from_nanos((self.now - machine.booted) * 1_000_000),
            wall: Walltime::from_millis((EPOCH + self.now).saturating_add_signed(machine.clock)),
            ..Moment::default()
        }
    }

    pub fn service(&mut self, n: usize, life: u64) -> Option<&mut Service> {
        self.machines[n]
            .service
            .as_mut()
            .filter(|service| service.life == life)
    }

    pub fn life(&self, n: usize) -> u64 {
        self.machines[n]
            .service
            .as_ref()
            .map_or(0, |service| service.life)
    }

    pub fn happen(&mut self, n: usize, event: Ev) {
        match event {
            Ev::Service(life, event) if self.life(n) == life => self.feed(n, event),
            Ev::Tick(life) => {
                if let Some(service) = self.service(n, life) {
                    service.ticks = None;
                    self.feed(n, Event::Tick);
                }
            }
            Ev::Connect(life) if self.life(n) == life => self.connect(n),
            Ev::Cut(life, connection) => {
                let backend = (self.backend.is_up, self.backend.life);
                let is_reachable = self.machines[n].is_reachable;
                if let Some(service) = self.service(n, life)
                    && let Some((number, leads_to)) = service.connection
                    && number == connection
                    && !(is_reachable && backend == (true, leads_to))
                {
                    self.lose_connection(n);
                }
            }
            Ev::Beat(life, connection) => self.beat(n, life, connection),
            Ev::Watch(life, connection, key, value) => self.watch(n, life, connection, &key, value),
            Ev::Arrive(life, backend, call, key, op) => {
                self.arrive(n, (life, backend, call), &key, op)
            }
            Ev::Reply(life, call, answer) => self.reply(n, life, call, answer),
            Ev::Take(life, batch) => self.take(n, life, &batch),
            Ev::Roll(life) => self.roll(n, life),
            Ev::StartService => self.start_service(n),
            Ev::PowerOn => self.power_on(n),
            Ev::Tool => self.look_at_tool(n),
            Ev::RunEnds(run) => self.run_ends(n, run),
            Ev::Cron => self.start_run(n, false),
            Ev::Person => self.person(n),
            Ev::Leave => self.leave(n),
            Ev::Removed(life, id) if self.life(n) == life => {
                self.machines[n].left.retain(|left| left.request.id != id);
            }
            Ev::BackendUp => {
                if !self.backend.is_up {
                    self.backend.start();
                }
            }
            Ev::Mended => self.mend(n),
            Ev::Fault => crate::faults::strike(self),
            Ev::Service(..) | Ev::Connect(_) | Ev::Removed(..) => {}
        }
    }

    /// Passes an event to a node's service, and carries out the actions that result.
    pub fn feed(&mut self, n: usize, event: Event) {
        let now = self.moment(n);
        let Some(service) = self.machines[n].service.as_mut() else {
            return;
        };
        let life = service.life;
        let tells = self.is_traced.then(|| format!("{event:?}"));
        let actions = step(&mut service.state, event, &now);
        if let Some(event) = tells {
            let (at, name) = (self.now, &self.machines[n].name);
            println!("{at} {name}: {event}\n    ▸ {actions:?}");
        }
        let me = self.machines[n].name.clone();
        self.promises.acts(&me, &actions, self.now);
        for action in actions {
            if self.odds(self.odds.crash) {
                self.promises.count("crash");
                self.kill(n);
            }
            if self.life(n) != life {
                return;
            }
            self.perform(n, action);
        }
        self.wake(n);
    }

    pub fn wake(&mut self, n: usize) {
        let (now, booted) = (self.now, self.machines[n].booted);
        let Some(service) = self.machines[n].service.as_mut() else {
            return;
        };
        let Some(at) = wakes(&service.state) else {
            return;
        };
        // A tick is never earlier than the service asked for, so the time is rounded up to a
        // millisecond.
        let at = (booted + at.nanos().div_ceil(1_000_000)).max(now);
        if service.ticks.is_none_or(|ticks| at < ticks) {
            service.ticks = Some(at);
            let life = service.life;
            self.after(at - now, n, Ev::Tick(life));
        }
    }

    pub fn perform(&mut self, n: usize, action: Action) {
        let life = self.life(n);
        match action {
            Action::Keep(drafts) => self.keep(n, drafts),
            Action::Put {
                entry,
                version,
                key,
                until,
            } => {
                let service = self.machines[n].service.as_ref().expect("alive");
                let content = service.state.entry(&entry).expect("an entry").clone();
                let bytes = seal::value(&self.machines[n].name, &content, &key);
                let expires = until.millis().saturating_sub(EPOCH);
                let call = Call::Put {
                    entry,
                    version,
                    key: key.clone(),
                };
                self.call(n, call, key, Op::Put(bytes, expires));
            }
            Action::Remove { place, revision } => {
                let key = self.key_of(n, &place);
                // The revision would mean something else to the next backend.
                let has_backend = self.machines[n].service.as_ref().expect("alive").connection;
                assert!(has_backend.is_some(), "{key:?} is to go from no backend");
                self.call(
                    n,
                    Call::Remove { place, revision },
                    key,
                    Op::Remove(revision),
                );
            }
            Action::KeepNumbers(numbers) => {
                self.promises.count("numbers by its clock again");
                let outbox = &mut self.machines[n].service.as_mut().expect("alive").outbox;
                let numbers = serde_json::to_vec(&numbers).expect("JSON");
                outbox.put("number", &numbers).expect("kept");
            }
            Action::Forget { entry, number } => {
                let outbox = &mut self.machines[n].service.as_mut().expect("alive").outbox;
                if let Some(numbers) = number {
                    let numbers = serde_json::to_vec(&numbers).expect("JSON");
                    outbox.put("number", &numbers).expect("kept");
                }
                outbox.remove(&entry.to_string()).expect("removed");
            }
            Action::HandOver(places) => self.hand_over(n, life, &places),
            Action::Say(client, said) => {
                let id = self.clients.remove(&client).expect("a client");
                if said.selection == Some(SelectionState::Stored) {
                    self.promises.stores(&id);
                }
                for target in said.delivered.iter().chain(&said.kept) {
                    self.promises.promise(target, &id);
                }
                for (target, why) in &said.failed {
                    self.promises.selects(&id, Some(target), false);
                    let limit = self.machines[n].rules.hop_limit;
                    match self.truths.get(&id) {
                        Some(Some(truth)) if why.starts_with("over ") => {
                            self.promises.stopped(target, truth, why, limit);
                        }
                        _ => self.promises.count("failed"),
                    }
                }
            }
            Action::Queue(which, parallel) => self.queue(n, which, parallel),
            Action::ReadNodes => {
                let hides = self.mutant == Some(Mutant::HidesNodes);
                let shown = if hides { 1 } else { self.machines.len() };
                let all = self.machines.iter().take(shown);
                let nodes = all.map(|machine| inventory(&machine.name)).collect();
                let delay = self.dice.below(SECOND);
                self.after(delay, n, Ev::Service(life, Event::Nodes(nodes)));
            }
            Action::Info(text) if text.contains(" is sent to ") => {
                self.promises.count("selection resolved");
            }
            Action::Note(text) => self.promises.logs(&text),
            Action::Progress { .. } | Action::Info(_) | Action::Rejected(_) => {}
        }
    }

    pub fn key_of(&self, n: usize, (sender, name): &Place) -> Key {
        Key::To {
            target: self.machines[n].name.clone(),
            sender: sender.clone(),
            name: name.clone(),
        }
    }

    pub fn keep(&mut self, n: usize, drafts: Vec<Draft>) {
        let life = self.life(n);
        for draft in drafts {
            if let Content::Trigger(trigger) = &draft.content
                && let Some(Some(truth)) = self.truths.get(&trigger.id)
                && trigger.ask == Ask::Run
            {
                self.promises
                    .carries(trigger, truth, self.machines[n].rules.hop_limit);
            }
            let loses_power = self.odds(self.odds.power);
            let dies_at =
                self.machines[n].disk.steps() + usize::try_from(self.dice.below(5)).expect("small");
            if loses_power {
                self.machines[n].disk.stop_before(dies_at);
            }
            let bytes = serde_json::to_vec(&draft).expect("JSON");
            let service = self.machines[n].service.as_mut().expect("alive");
            let kept = service
                .outbox
                .put(&draft.entry.to_string(), &bytes)
                .map_err(|e| e.to_string());
            if loses_power {
                self.promises.count("power lost while writing");
                self.power_off(n, 30 * SECOND);
                return;
            }
            let event = Event::Kept {
                entry: draft.entry,
                version: draft.version,
                kept,
            };
            self.after(2, n, Ev::Service(life, event));
        }
    }

    pub fn gone(&self) -> BTreeSet<Node> {
        let gone = self.machines.iter().filter(|machine| machine.is_gone);
        gone.map(|machine| machine.name.clone()).collect()
    }
}

/// Inventory that a node publishes: selections match it while the environment is `production`.
pub fn inventory(node: &Node) -> Inventory {
    Inventory {
        node: node.clone(),
        at: 1,
        serial: 1,
        facts: BTreeMap::new(),
        classes: BTreeSet::new(),
        environment: "production".to_owned(),
        version: String::new(),
        puppet: String::new(),
        running: None,
        last: None,
        ended: None,
        pending: 0,
        disabled: false,
        cap: None,
        tokens: BTreeMap::new(),
        resets: BTreeMap::new(),
    }
}
