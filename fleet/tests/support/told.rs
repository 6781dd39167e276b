//! Events and inventories as another node publishes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use again_fleet::wire::event::{Batch, Begun, Change, Event, Line};
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::lineage::Lineage;
use again_fleet::wire::name::Id;

/// Returns the wall-clock time in milliseconds since 1970.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.expect("a clock").as_millis()).expect("a time")
}

/// Returns the event of a service that was started, with number `n`, at `at`.
pub fn started(n: u64, at: u64) -> Event {
    Event {
        n,
        at,
        resource: "Service[httpd]".to_owned(),
        change: Change::Started,
        property: Some("ensure".to_owned()),
        corrective: false,
        tags: vec!["service".to_owned(), "httpd".to_owned()],
        within: vec!["Stage[main]".to_owned()],
        file: None,
        line: None,
        old: None,
        new: None,
        message: None,
    }
}

/// Returns the batch of a run that started a service now, with one event for each number.
pub fn batch(node: &str, run: u128, numbers: &[u64]) -> Batch {
    let at = now();
    Batch {
        node: node.parse().expect("a certname"),
        run: Id::from_bits(run),
        begun: Begun {
            at,
            environment: "production".to_owned(),
            puppet: "7.23.0".to_owned(),
            origins: Lineage::default(),
            unknown: false,
            lost: 0,
        },
        events: numbers.iter().map(|n| started(*n, at)).collect(),
        ended: None,
    }
}

/// Writes the events of a batch into a spool, as the run of that batch does.
pub fn leave(spool: &Path, batch: &Batch) {
    let lines = batch.events.iter().cloned().map(Line::Event);
    let lines = [Line::Begun(batch.begun.clone())].into_iter().chain(lines);
    let lines = lines.map(|line| serde_json::to_string(&line).expect("JSON") + "\n");
    let path = spool.join(format!("{}-{}", now(), batch.run));
    fs::write(path, lines.collect::<String>()).expect("written");
}

/// Returns the inventory that a node publishes.
pub fn inventory(node: &str, role: &str) -> Inventory {
    Inventory {
        node: node.parse().expect("a certname"),
        at: now(),
        serial: now(),
        facts: BTreeMap::from([("role".to_owned(), role.to_owned())]),
        classes: BTreeSet::from(["roles::web".to_owned()]),
        environment: "production".to_owned(),
        version: "0".to_owned(),
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
