//! Clients of the service, their requests, and the answers.

use std::collections::BTreeSet;

use tokio::sync::mpsc::unbounded_channel;

use again_base::sys::clock;

use super::{Driver, Health, Note, then};
use crate::ask::{self, Failure, How, Question, Waiting};
use crate::service::link::{Call, Listed};
use crate::service::listener::{self, Connection};
use crate::step::model::{Back, Client, Content, Event};
use crate::wire::key::Prefix;
use crate::wire::lineage::Lineage;
use crate::wire::name::{Id, Node};
use crate::wire::trigger::{Ask, Trigger};

impl Driver {
    /// Accepts a connection, and reads its question.
    pub fn let_in(&mut self, connection: Connection) {
        let (tell, answers) = unbounded_channel();
        let client = self.callers.enter(tell);
        let notes = self.ways.notes.clone();
        tokio::spawn(async move {
            let ask = |question| {
                let _ = notes.send(Note::Asked(client, question));
            };
            // A client that disconnects before the end knows the reason itself.
            let _ = listener::converse(connection, ask, answers).await;
            let _ = notes.send(Note::Left(client));
        });
    }

    /// Forgets a client that has disconnected.
    pub fn left(&mut self, client: Client) {
        self.callers.leave(client);
        self.slots.leave(client);
    }

    /// Handles a client's question.
    pub fn asked(&mut self, client: Client, question: Question) {
        match question {
            Question::Fire { request, .. } if request.parallel > 0 && !self.has_places(client) => {}
            Question::Fire { request, wait } => {
                let ways = request
                    .targets
                    .iter()
                    .map(|target| (request.id.clone(), target.clone()));
                let ways = if wait && !request.is_deferred() {
                    ways.collect()
                } else {
                    BTreeSet::new()
                };
                self.callers.wait(client, ways);
                self.feed(Event::Fire { client, request });
            }
            Question::TakeBack { what, wait } => {
                let ways = if wait {
                    self.on_the_way(&what)
                } else {
                    BTreeSet::new()
                };
                self.callers.wait(client, ways);
                self.feed(Event::TakeBack { client, what });
            }
            Question::HowAreYou => {
                let how = ask::Answer::How(Box::new(self.how()));
                self.callers.answer(client, how);
            }
            Question::Tell(told) => self.began(client, *told),
            Question::Ended(outcome) => self.ended(client, outcome),
            Question::Forget(node) => self.forget(client, node),
            Question::Slot(wish) => self.wish(client, &wish),
            Question::Slots(group) => {
                if self.has_places(client) {
                    let prefix = group.as_ref().map_or(Prefix::AllSlots, Prefix::Slots);
                    self.look(client, &[prefix]);
                }
            }
            Question::Release { group, node } => self.release(client, group, node),
            Question::Locks(own) => self.show_locks(client, own),
            Question::Move(word) => self.move_lock(client, *word),
            Question::Resets(lock) => self.look(client, &[Prefix::MovesOf(&lock)]),
            Question::Reset(reset) => self.reset(client, *reset),
            Question::Nodes => self.ask_nodes(client),
            Question::Story(origin) => {
                self.tell_the_way(client, origin.as_ref());
                let below = Prefix::Stories(origin.as_ref()).encode(&self.namespace);
                let then = then(move |driver, answer| driver.listed(client, &[below], answer));
                self.order(Call::Stories { origin, then });
            }
        }
    }

    /// Shows a client the values below these prefixes in the backend.
    pub(super) fn look(&self, client: Client, prefixes: &[Prefix<'_>]) {
        let prefixes = prefixes.iter();
        let prefixes = prefixes.map(|prefix| prefix.encode(&self.namespace));
        self.list(prefixes.collect(), move |driver, asked, answer| {
            driver.listed(client, asked, answer);
        });
    }

    /// Lists the values below these prefixes in the backend, and continues with the answer.
    pub(super) fn list(
        &self,
        prefixes: Vec<String>,
        act: impl FnOnce(&mut Driver, &[String], Listed) + 'static,
    ) {
        let asked = prefixes.clone();
        let then = then(move |driver, answer| act(driver, &asked, answer));
        self.order(Call::List { prefixes, then });
    }

    /// Shows a client the triggers that wait here for their targets, of this origin or of all.
    fn tell_the_way(&mut self, client: Client, origin: Option<&Id>) {
        let triggers = self
            .state
            .entries()
            .filter_map(|(_, content)| match content {
                Content::Trigger(trigger) if trigger.ask == Ask::Run => Some(trigger),
                _ => None,
            });
        for trigger in triggers {
            // One origin at a time: with all of them the trigger may be too long for an answer.
            let origins = trigger.lineage.0.iter();
            for one in origins.filter(|one| origin.is_none_or(|id| *id == one.id)) {
                let lineage = Lineage(vec![one.clone()]);
                let trigger = Trigger {
                    lineage,
                    ..trigger.clone()
                };
                let answer = ask::Answer::OnTheWay(Box::new(trigger));
                self.callers.tell(client, answer);
            }
        }
    }

    /// Triggers that wait here for their targets and that a cancel request names.
    fn on_the_way(&self, what: &Back) -> BTreeSet<(Id, Node)> {
        let triggers = self
            .state
            .entries()
            .filter_map(|(_, content)| match content {
                Content::Trigger(trigger) if trigger.ask == Ask::Run => Some(trigger),
                _ => None,
            });
        let meant = triggers.filter(|trigger| match what {
            Back::Id(id) => trigger.id == *id,
            Back::To(node) => trigger.target == *node,
        });
        let ways = meant.map(|trigger| (trigger.id.clone(), trigger.target.clone()));
        ways.collect()
    }

    fn how(&self) -> How {
        let health = &self.health;
        let waiting = self.waiting();
        let all = health.failures.all(clock::boottime());
        How {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.me.clone(),
            namespace: self.namespace.clone(),
            began: self.began.millis(),
            link: ask::Link {
                backend: health.backend,
                is_up: health.is_up,
                since: health.since.millis(),
                why: ask::words(&health.why),
            },
            failures: all.into_iter().map(Failure::shown).collect(),
            outbox: waiting,
            executor: health.executor.as_deref().map(ask::words),
            rejected: health.rejected,
            slots: self.slots.own(true),
            tokens: self.locks.warnings(),
            selections: self.state.shown_selections(),
            ahead: self.state.ahead(),
            set_back: self.state.set_back(clock::walltime()),
            names: self.state.crowded(clock::walltime()),
        }
    }

    /// Status line for systemd.
    pub fn status(&self) -> String {
        let Waiting {
            triggers,
            selections,
            results,
            ..
        } = self.waiting();
        let Health {
            backend,
            is_up,
            why,
            ..
        } = &self.health;
        let link = if *is_up {
            format!("{backend} is reached")
        } else {
            format!("{backend} is not reached: {why}")
        };
        let selections = match selections {
            0 => String::new(),
            count => format!(", {count} selections"),
        };
        format!("{triggers} triggers{selections} and {results} results wait; {link}")
    }

    /// Entries that wait to be sent.
    pub(super) fn waiting(&self) -> Waiting {
        let mut waiting = Waiting {
            triggers: 0,
            selections: self.state.stored_selections(),
            results: self.state.untold(),
            oldest: None,
            not_kept: self.health.not_kept.as_deref().map(ask::words),
        };
        for (_, content) in self.state.entries() {
            if let Content::Trigger(trigger) = content {
                waiting.triggers += 1;
                let oldest = waiting.oldest.map_or(trigger.at, |at| at.min(trigger.at));
                waiting.oldest = Some(oldest);
            }
        }
        waiting
    }
}
