//! Inventory of this node, from its runs and from the service's own knowledge; and the key where it
//! is published.

use std::collections::{BTreeMap, BTreeSet};

use again_base::sys::clock;

use super::Driver;
use crate::ask;
use crate::backend::{Change, Error};
use crate::seal::hash;
use crate::service::link::OWN_KEY;
use crate::step::model::{Client, Content, EntryId, Event};
use crate::step::own_key::OwnKey;
use crate::wire::inventory::Inventory;
use crate::wire::key::Key;
use crate::wire::outcome::{Outcome, Ran};

impl Driver {
    /// Publishes the inventory of a run that begins.
    pub fn began(&mut self, client: Client, told: Inventory) {
        let known = self.inventory();
        let (last, ended) = known.map_or((None, None), |known| (known.last, known.ended));
        self.publish(Inventory {
            last,
            ended,
            ..told
        });
        self.kept_or_not(client);
    }

    /// Publishes the outcome of a run that ends.
    pub fn ended(&mut self, client: Client, outcome: Outcome) {
        let known = self.inventory().filter(|known| known.is_of_a_run());
        let Some(known) = known.cloned() else {
            let why = "no run has told yet what this node is";
            return self
                .callers
                .answer(client, ask::Answer::Refused(why.to_owned()));
        };
        self.publish(Inventory {
            running: None,
            last: Some(outcome),
            ended: Some(clock::walltime().millis()),
            ..known
        });
        self.kept_or_not(client);
    }

    /// Publishes the inventory again with what the service knows now. It includes the outcomes of
    /// these runs, if a run has published an inventory but not its end.
    pub fn retell(&mut self, ends: &[(Ran, Outcome)]) {
        if let Some(mut known) = self.inventory().cloned() {
            let is_of_a_run = known.is_of_a_run();
            for (ran, outcome) in ends.iter().filter(|_| is_of_a_run) {
                known.heard_of_end(ran, *outcome);
            }
            self.publish(known);
        }
    }

    /// Publishes the tokens of locks that this node knows.
    pub(super) fn tell_tokens(&mut self) {
        self.retell(&[]);
        self.introduce();
    }

    /// Signs this node's inventory again, if that is due: other nodes see from it that this node is
    /// connected.
    pub fn sign_anew(&mut self) {
        self.introduce();
        self.feed(Event::Beat);
    }

    /// Publishes that this node is connected, before a run has published its facts.
    fn introduce(&mut self) {
        let is_candidate = !self.locks.tokens().is_empty();
        if !self.health.is_up || !self.state.is_unpublished(is_candidate) {
            return;
        }
        self.publish(Inventory {
            node: self.me.clone(),
            at: 0,
            serial: 0,
            facts: BTreeMap::new(),
            classes: BTreeSet::new(),
            environment: String::new(),
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
        });
    }

    fn publish(&mut self, told: Inventory) {
        let pending = self
            .taken()
            .values()
            .filter(|known| known.0.outcome == Outcome::Taken)
            .count();
        self.feed(Event::Inventory(Inventory {
            node: self.me.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pending: u32::try_from(pending).unwrap_or(u32::MAX),
            tokens: self.locks.tokens(),
            resets: self.locks.resets(),
            ..told
        }));
    }

    /// Handles that a watch has shown everything, or shows nothing.
    pub(super) fn own_key_seen(&mut self, number: usize, is_shown: bool) {
        if number == OWN_KEY {
            self.feed(Event::OwnKeySeen { is_shown });
            self.introduce();
        }
    }

    /// Handles the loss of a watch. If the backend refuses to show the own key, it is not waited
    /// for.
    pub(super) fn own_key_lost(&mut self, number: usize, error: &Error) {
        if number == OWN_KEY {
            self.feed(Event::OwnKeyLost);
        }
        if matches!(error, Error::Denied(_) | Error::Full(_)) {
            self.own_key_seen(number, false);
        }
    }

    /// Handles a value that was written at this node's own key, or removed.
    pub(super) fn own_key_changed(&mut self, change: Change) {
        let revision = change.revision();
        let found = match change {
            Change::Removed { .. } => OwnKey::Absent,
            Change::Put(value) if Some(hash(&value.bytes)) == self.own_value => OwnKey::Unchanged,
            Change::Put(value) => {
                let key = Key::Node(self.me.clone());
                let read = self.seals.read(&value.bytes, &key);
                // The next service continues from this version.
                if let Ok(one) = &read {
                    let _ = self.seals.newest.judge(one);
                }
                read.map_or_else(OwnKey::Foreign, |one| OwnKey::Signed(Box::new(one)))
            }
        };
        self.feed(Event::OwnKey { revision, found });
    }

    fn inventory(&self) -> Option<&Inventory> {
        match self.state.entry(&EntryId::Node) {
            Some(Content::Node(known)) => Some(known),
            _ => None,
        }
    }

    /// Answers a run whether its inventory is on disk, or why not.
    fn kept_or_not(&mut self, client: Client) {
        match self.state.not_kept(&EntryId::Node) {
            Some(why) => {
                let why = ask::words(why);
                self.callers.answer(client, ask::Answer::Refused(why));
            }
            None => self.callers.end(client),
        }
    }
}
