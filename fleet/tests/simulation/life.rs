//! Life of a node: its service starts and is killed, the executor accepts triggers, Puppet runs and
//! sends triggers.

use again_base::model::Span;
use again_fleet::outbox::{Bounds, Outbox};
use again_fleet::policy::fire::{Numbers, Request};
use again_fleet::policy::select::Criteria;
use again_fleet::step::model::{Back, Client, Draft, Event, Place, State};
use again_fleet::wire::lineage::Cause;
use again_fleet::wire::name::{Id, Name, Node};
use again_fleet::wire::outcome::Outcome;
use std::collections::{BTreeMap, BTreeSet};

use crate::tool::Run;
use crate::world::{Call, Ev, Left, MINUTE, Mutant, Op, SECOND, Service, World};

const WIDE: Bounds = Bounds {
    count: 100_000,
    bytes: 1 << 30,
};

impl World {
    pub fn start_service(&mut self, n: usize) {
        let now = self.moment(n);
        self.count += 1;
        let life = self.count;
        let machine = &mut self.machines[n];
        if !machine.is_on || machine.service.is_some() {
            return;
        }
        let (outbox, held) = Outbox::open(machine.disk.clone(), WIDE).expect("opened");
        assert_eq!(held.aside, Vec::<String>::new());
        let mut numbers = Numbers::default();
        let mut drafts = Vec::new();
        for (key, value) in held.values {
            if key == "number" {
                numbers = serde_json::from_slice(&value).expect("numbers");
            } else {
                drafts.push(serde_json::from_slice::<Draft>(&value).expect("a draft"));
            }
        }
        machine.service = Some(Service {
            state: State::new(machine.rules.clone(), numbers, drafts, &now),
            life,
            outbox,
            connection: None,
            known: BTreeSet::new(),
            calls: BTreeMap::new(),
            watched: 0,
            ticks: None,
            history: 0,
            reached: 0,
            waiters: BTreeMap::new(),
            rolls: None,
        });
        self.publish(n);
        self.wake(n);
        self.push_history(n);
        let delay = self.dice.below(100);
        self.after(delay, n, Ev::Connect(life));
        self.roll_after(n, delay);
        self.send_left(n);
    }

    /// Kills the service of a node, and leaves a request on disk, as a command does while the
    /// service is down.
    pub fn leave(&mut self, n: usize) {
        self.kill(n);
        let other = usize::try_from(self.dice.below(self.machines.len() as u64)).expect("small");
        if other == n || !self.machines[n].is_on {
            return;
        }
        self.promises.count("left on disk");
        self.count += 1;
        // If a later trigger has the same name, the request may run twice.
        let name: Name = format!("on disk {}", self.count).parse().expect("a name");
        let target = self.machines[other].name.clone();
        let request = self.request(n, &[target], &name, None);
        self.promises.selects(&request.id, None, true);
        let (at, ends) = (self.moment(n).wall, None);
        self.machines[n].left.push(Left { request, at, ends });
    }

    /// Sends the requests that wait on disk. The executor removes each later, if this service still
    /// runs then.
    fn send_left(&mut self, n: usize) {
        let (life, now) = (self.life(n), self.moment(n).wall);
        if life == 0 {
            return;
        }
        for Left { request, at, ends } in self.machines[n].left.clone() {
            let id = request.id.clone();
            let left = request.ttl.nanos().saturating_sub(now.since(at).nanos());
            // If the clock was set back, the request may live longer than its target remembers the
            // first one.
            let longest = ends.map_or(u64::MAX, |ends| ends.saturating_sub(self.now));
            let ttl = longest.min(left / 1_000_000);
            if ttl == 0 || self.mutant == Some(Mutant::LosesRequests) {
                if ttl == 0 {
                    self.promises.selects(&id, None, false);
                }
                self.machines[n].left.retain(|one| one.request.id != id);
                continue;
            }
            if ends.is_some() {
                self.promises.count("sent again from disk");
            }
            let is_clock_right = self.machines[n].clock == 0;
            self.promises.ages(&id, self.now, ttl, is_clock_right);
            let ends = Some(self.now + ttl);
            let all = self.machines[n].left.iter_mut();
            all.filter(|one| one.request.id == id)
                .for_each(|one| one.ends = ends);
            let client = self.client(id.clone());
            let ttl = Span::from_nanos(ttl * 1_000_000);
            let request = Request { ttl, ..request };
            self.feed(n, Event::Fire { client, request });
            if self.life(n) != life {
                return;
            }
            let delay = 1 + self.dice.below(5 * MINUTE);
            self.after(delay, n, Ev::Removed(life, id));
        }
    }

    /// Kills a service, which is restarted later.
    pub fn kill(&mut self, n: usize) {
        if self.machines[n].service.take().is_some() {
            let delay = 100 + self.dice.below(MINUTE);
            self.after(delay, n, Ev::StartService);
        }
    }

    pub fn power_off(&mut self, n: usize, longest: u64) {
        if !self.machines[n].is_on {
            return;
        }
        self.machines[n].service = None;
        self.machines[n].ledger.die();
        self.machines[n].is_on = false;
        self.machines[n].disk.crash(&mut self.dice);
        let delay = SECOND + self.dice.below(longest);
        self.after(delay, n, Ev::PowerOn);
    }

    pub fn power_on(&mut self, n: usize) {
        let now = self.now;
        let machine = &mut self.machines[n];
        if machine.is_on || machine.is_gone {
            return;
        }
        machine.is_on = true;
        machine.boot += 1;
        machine.booted = now;
        machine.tool.end(Outcome::Failed);
        self.after(SECOND, n, Ev::StartService);
        self.after(SECOND, n, Ev::Tool);
    }

    pub fn mend(&mut self, n: usize) {
        let machine = &mut self.machines[n];
        machine.is_reachable = true;
        machine.clock = 0;
        machine.tool.is_disabled = false;
        self.feed(n, Event::Changed);
    }

    pub fn hand_over(&mut self, n: usize, life: u64, places: &[(Place, u64)]) {
        let service = self.machines[n].service.as_ref().expect("alive");
        let mut batch = Vec::new();
        for (place, _) in places {
            let (_, evidence) = service.state.evidence(place).expect("a trigger");
            batch.push(evidence.bytes());
        }
        if self.mutant == Some(Mutant::RemovesFirst) {
            for (place, revision) in places {
                let key = self.key_of(n, place);
                let call = Call::Remove {
                    place: place.clone(),
                    revision: *revision,
                };
                self.call(n, call, key, Op::Remove(*revision));
            }
        }
        let delay = 1 + self.dice.below(30);
        self.after(delay, n, Ev::Take(life, batch));
    }

    /// Hands a batch over to the executor: see `executor.rs`.
    pub fn take(&mut self, n: usize, life: u64, batch: &[Vec<u8>]) {
        if !self.machines[n].is_on {
            return;
        }
        let answers = crate::executor::take(self, n, batch);
        if self.life(n) == life {
            self.feed(
                n,
                answers.map_or_else(|| Event::NotHanded("it died".to_owned()), Event::Answers),
            );
        }
        self.look_at_tool(n);
    }

    /// Whether an executor dies here. The next one reads its ledger.
    pub fn dies(&mut self, n: usize) -> bool {
        let dies = self.odds(self.odds.take);
        if dies {
            self.machines[n].ledger.die();
        }
        dies
    }

    pub fn look_at_tool(&mut self, n: usize) {
        let Some(due) = self.machines[n]
            .tool
            .due()
            .filter(|_| self.machines[n].is_on)
        else {
            return;
        };
        if due > self.now {
            self.after(due - self.now, n, Ev::Tool);
        } else if !self.machines[n].tool.is_disabled {
            self.start_run(n, true);
        } else {
            self.after(10 * SECOND, n, Ev::Tool);
        }
    }

    pub fn start_run(&mut self, n: usize, by_itself: bool) {
        let keeps = self.mutant != Some(Mutant::LosesSatisfied);
        let now = self.now;
        let machine = &mut self.machines[n];
        if !machine.is_on || machine.tool.running.is_some() {
            return;
        }
        machine.tool.start(now, by_itself, keeps);
        let run = machine.tool.running.as_ref().expect("a run").number;
        let length = machine.run_length;
        self.promises.count("run");
        self.push_history(n);
        self.after(length, n, Ev::RunEnds(run));
    }

    pub fn run_ends(&mut self, n: usize, number: u64) {
        let Some(run) = self.machines[n]
            .tool
            .running
            .clone()
            .filter(|run| run.number == number)
        else {
            return;
        };
        for notify in self.machines[n].manifest.clone() {
            if self.dice.permille(notify.permille) {
                self.fire(n, &notify.targets, &notify.name, Some(&run));
            }
        }
        let outcomes = [
            Outcome::Changed,
            Outcome::Unchanged,
            Outcome::Failed,
            Outcome::Unknown,
        ];
        let outcome = outcomes[usize::try_from(self.dice.below(4)).expect("small")];
        self.machines[n].tool.end(outcome);
        self.machines[n].facts += u64::from(self.dice.permille(300));
        self.publish(n);
        self.push_history(n);
        self.look_at_tool(n);
    }

    /// Reports to a service the outcomes of the triggers that were accepted.
    pub fn push_history(&mut self, n: usize) {
        loop {
            let machine = &mut self.machines[n];
            let Some(service) = machine.service.as_mut() else {
                return;
            };
            let Some((which, lineage, outcome)) =
                machine.tool.history.get(service.history).cloned()
            else {
                return;
            };
            service.history += 1;
            let event = Event::Ran {
                which,
                lineage,
                outcome,
                why: String::new(),
                ran: None,
            };
            self.feed(n, event);
        }
    }

    pub fn person(&mut self, n: usize) {
        if self.machines[n].service.is_none() {
            return;
        }
        let other = usize::try_from(self.dice.below(self.machines.len() as u64)).expect("small");
        let target = self.machines[other].name.clone();
        match self.dice.below(10) {
            0 => self.forget_node(n),
            1..4 => self.read_nodes(n),
            _ => {}
        }
        if self.dice.permille(200) {
            let recent = self.recent.last().cloned();
            let what = match recent.filter(|_| self.dice.permille(500)) {
                Some(id) => Back::Id(id),
                None => Back::To(target),
            };
            let client = self.client(Id::from_bits(0));
            self.promises.takes_back(&self.machines[n].name, &what);
            self.feed(n, Event::TakeBack { client, what });
        } else if other != n {
            let name = "by hand".parse().expect("a name");
            self.fire(n, &[target], &name, None);
        }
    }

    pub fn client(&mut self, id: Id) -> Client {
        self.count += 1;
        let client = Client::Connection(self.count);
        self.clients.insert(client, id);
        client
    }

    pub fn fire(&mut self, n: usize, targets: &[Node], name: &Name, run: Option<&Run>) {
        if self.machines[n].service.is_none() {
            return;
        }
        let request = self.request(n, targets, name, run);
        let client = self.client(request.id.clone());
        self.feed(n, Event::Fire { client, request });
    }

    fn request(&mut self, n: usize, targets: &[Node], name: &Name, run: Option<&Run>) -> Request {
        let id = Id::from_bits(u128::from(self.dice.draw()) << 64 | u128::from(self.dice.draw()));
        let ttl = self.most_ttl / 4 + self.dice.below(3 * self.most_ttl / 4);
        let is_clock_right = self.machines[n].clock == 0;
        let sender = self.machines[n].name.clone();
        // Sometimes the nodes were selected from the last inventory: all others get the trigger
        // later, if the backend answers in time.
        let is_open = self.dice.permille(100);
        let is_clock_right = is_clock_right && !is_open;
        let all: Vec<Node> = self.machines.iter().map(|one| one.name.clone()).collect();
        for target in if is_open { &all } else { targets } {
            self.promises
                .fires((&sender, target), &id, self.now, ttl, is_clock_right);
        }
        self.truths
            .insert(id.clone(), run.map(|run| run.truth.clone()));
        self.recent.push(id.clone());
        let delta = if self.dice.permille(300) {
            self.dice.below(30)
        } else {
            0
        };
        // Checking a long queue takes too much time.
        let is_rolling = self.machines.len() < 20 && self.dice.permille(300);
        let (mut parallel, mut stop_after) = (0, 0);
        if is_rolling {
            parallel = 1 + self.dice.below(3) as u32;
            stop_after = self.dice.below(4) as u32;
        }
        Request {
            id,
            targets: targets.to_vec(),
            name: name.clone(),
            cause: if run.is_some() {
                Cause::Refresh
            } else {
                Cause::Person
            },
            on_behalf: None,
            run: run.map(|run| run.lineage.clone()).unwrap_or_default(),
            delta: Span::from_secs(delta),
            ttl: Span::from_nanos(ttl * 1_000_000),
            parallel,
            stop_after,
            selection: is_open.then(|| Criteria {
                environment: Some("production".to_owned()),
                ..Criteria::default()
            }),
            is_open,
        }
    }
}
