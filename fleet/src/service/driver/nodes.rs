//! Answers to questions for nodes: from the backend, or from the last inventory in its place. The
//! nodes that the backend shows are stored.

use std::time::Duration;

use again_base::layout::plural;
use again_base::model::{Span, Walltime};
use again_base::sys::clock;
use again_base::sys::localtime::local;
use tracing::warn;

use super::{Driver, Note};
use crate::ask::{self, Answer};
use crate::backend::{Error, Value};
use crate::policy::last_inventory::{LastInventory, Reading};
use crate::policy::newest::Ignored;
use crate::service::link::Listed;
use crate::service::nodes::Source;
use crate::step::model::{Client, Event};
use crate::wire::key::{Key, Prefix};
use crate::wire::name::Node;

/// Time after which the last inventory is shown if the backend has not shown its nodes: commands
/// wait for 5 s.
const PATIENCE: Duration = Duration::from_secs(3);

impl Driver {
    /// Handles a client's question for all nodes.
    pub(super) fn ask_nodes(&mut self, client: Client) {
        self.nodes.asked.insert(client, false);
        let notes = self.ways.notes.clone();
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            let _ = notes.send(Note::Late(client));
        });
        self.list_nodes(client);
    }

    fn list_nodes(&self, client: Client) {
        let nodes = Prefix::Nodes.encode(&self.namespace);
        self.list(vec![nodes], move |driver, _, answer| {
            driver.nodes_listed(client, answer);
        });
    }

    /// Reads the nodes if there is a last inventory, or if a stored selection waits for them. The
    /// sooner after a loss of data this happens, the more of the loss is seen.
    pub(super) fn read_nodes_again(&mut self) {
        if self.nodes.has_last() || self.state.stored_selections() > 0 {
            self.read_nodes();
        }
    }

    /// Reads the nodes for the service itself.
    pub(super) fn read_nodes(&mut self) {
        self.list_nodes(Client::Service);
    }

    /// Resolves stored selections with the nodes that the backend has just shown, and those that
    /// still count although it has lost them.
    fn resolve_selections(&mut self, last: &LastInventory) {
        let now = clock::moment();
        if !self.state.needs_nodes(&now) {
            return;
        }
        let wait = last.returns_for(&now);
        if wait > Span::ZERO {
            return self.feed(Event::NodesIncomplete(wait));
        }
        let published = last.nodes.iter();
        let published = published.filter(|(_, entry)| !entry.bytes.is_empty());
        let nodes = published.filter_map(|(node, entry)| {
            let key = Key::Node(node.clone());
            self.seals.read(&entry.bytes, &key).ok()
        });
        let nodes = nodes.collect();
        self.feed(Event::Nodes(nodes));
    }

    /// Shows the last inventory if the backend has not answered in time.
    pub fn late(&mut self, client: Client) {
        if self.nodes.asked.get(&client).is_some() && self.callers.is_here(client) {
            let last = self.nodes.last();
            // Without a last inventory, the client waits for the backend's answer.
            if last.read.is_some() {
                self.nodes.asked.insert(client, true);
                let seconds = PATIENCE.as_secs();
                let why = format!(
                    "{} has not answered within {seconds} s",
                    self.health.backend
                );
                self.show_last(client, last, why);
            }
        }
    }

    /// Handles the backend's answer to a question for all nodes.
    fn nodes_listed(&mut self, client: Client, answer: Listed) {
        let is_late = self.nodes.asked.remove(&client) == Some(true);
        self.look_at_files();
        match answer {
            Ok(list) => {
                // A client that was shown the last inventory gets nothing more, but the nodes are
                // stored.
                let client = if is_late { Client::Service } else { client };
                let reading = Reading {
                    store: list.store,
                    revision: list.revision,
                    ..Reading::default()
                };
                // Lists come in the order in which the backend made them.
                self.nodes.readings += 1;
                let source = Source::Nodes(reading, self.nodes.readings);
                let values = list.values;
                self.begin_to_show(client, values, source);
            }
            Err(_) if is_late => {}
            Err(e) => self.nodes_not_listed(client, &e),
        }
    }

    fn nodes_not_listed(&mut self, client: Client, error: &Error) {
        let last = self.nodes.last();
        match last.read {
            Some(_) => {
                let health = &self.health;
                let why = match error {
                    Error::Unreachable(_) if !health.is_up => {
                        format!("{} cannot be reached: {}", health.backend, health.why)
                    }
                    error => format!("{} {error}", health.backend),
                };
                self.show_last(client, last, why);
            }
            None => {
                let why = self.not_seen(error);
                self.callers.answer(client, why);
            }
        }
    }

    /// Shows the last inventory, and why there is nothing newer.
    fn show_last(&mut self, client: Client, last: LastInventory, why: String) {
        let stored = Answer::Stored {
            at: last.read.unwrap_or_default().millis(),
            why: ask::words(&why),
        };
        self.callers.tell(client, stored);
        self.tell_missing(client, last.missing());
        let nodes = last.nodes.into_iter();
        let nodes = nodes.filter(|(_, entry)| !entry.bytes.is_empty());
        let nodes = nodes.map(|(node, entry)| self.stored(node, entry.bytes));
        let values = nodes.collect();
        self.begin_to_show(client, values, Source::Stored);
    }

    fn stored(&self, node: Node, bytes: Vec<u8>) -> Value {
        Value::new(Key::Node(node).encode(&self.namespace), bytes, 0)
    }

    fn tell_missing<'a>(
        &mut self,
        client: Client,
        missing: impl Iterator<Item = (&'a Node, Walltime)>,
    ) {
        for (node, since) in missing {
            let since = since.millis();
            let node = node.clone();
            self.callers.tell(client, Answer::Missing { node, since });
        }
    }

    /// Records a value of a list of nodes in the reading, as valid or invalid.
    pub(super) fn remember(reading: &mut Reading, value: Value, key: Option<Key>, is_valid: bool) {
        if let Some(Key::Node(node)) = key {
            if is_valid {
                reading.values.push((node, value));
            } else {
                let bytes = Vec::new();
                reading.invalid.push((node, Value { bytes, ..value }));
            }
        }
    }

    /// Inventory of a node, from the last inventory.
    pub(super) fn shown_stored(&mut self, value: &Value) -> Result<Answer, Ignored> {
        let key = Key::decode(&value.key, &self.namespace).map_err(|e| e.to_string())?;
        let node = self.seals.read(&value.bytes, &key)?;
        Ok(Answer::Node(Box::new(node)))
    }

    /// Handles that all nodes of the backend were shown: they are stored, and the nodes that the
    /// backend has lost are shown too.
    pub(super) fn nodes_read(&mut self, client: Client, reading: Reading, number: u64) {
        let mut last = self.nodes.last();
        if number > self.nodes.kept {
            self.nodes.kept = number;
            let before = last.read;
            if let Some(loss) = last.update(reading, &clock::moment())
                && loss.missing > 0
            {
                let (backend, count) = (&self.health.backend, loss.missing);
                let (s, at) = (plural(count), local(before.unwrap_or_default()));
                warn!(
                    "{backend} has lost its data: {}; {count} node{s} of the last inventory (read at {at}) still count",
                    loss.why
                );
            }
            self.keep_nodes(&last);
        }
        self.resolve_selections(&last);
        let since: Vec<_> = last.missing().collect();
        if since.is_empty() {
            return self.callers.end(client);
        }
        self.tell_missing(client, since.into_iter());
        let missing = last.nodes.into_iter();
        let missing = missing.filter(|(_, entry)| entry.missing_since.is_some());
        let values = missing.map(|(node, entry)| self.stored(node, entry.bytes));
        let values = values.collect();
        self.begin_to_show(client, values, Source::Stored);
    }

    /// Stores the last inventory. An error is logged once.
    fn keep_nodes(&mut self, last: &LastInventory) {
        let written = self.nodes.keep(last);
        let why = written.err().map_or(String::new(), |e| e.to_string());
        if !why.is_empty() && why != self.nodes.why {
            warn!("the last inventory cannot be written, the one before stays on disk: {why}");
        }
        self.nodes.why = why;
    }

    /// Removes a node from the last inventory, and answers the client whether this or the removal
    /// from the backend removed anything.
    pub(super) fn forget_last(&mut self, client: Client, node: &Node, was_removed: bool) {
        let said = match self.nodes.forget(node) {
            Ok(was_known) if was_known || was_removed => return self.callers.end(client),
            Ok(_) => format!("{node} has told nothing of itself"),
            Err(e) => format!("{node} stays in the last inventory, which cannot be written: {e}"),
        };
        self.callers.answer(client, Answer::Refused(said));
    }
}
