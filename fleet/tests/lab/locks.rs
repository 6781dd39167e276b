use again_test_support::Lab;
use serde_json::Value;

use crate::fleet::{Fleet, apply, classes, is_linked};

const LOCK: &str = "common::again::lock { 'db': candidates => ['web1.test', 'lb1.test'], prefer => ['web1.test'] }\n";

/// Manifest that notes the value of the fact. The lock's first trigger may reach a node before the
/// lock's file does.
const RUN: &str = r#"$lock = $facts.dig('again_fleet', 'locks', 'db').lest || { {} }
exec { "/bin/sh -c 'echo ${lock['holder']} ${lock['token']} >>/var/log/holders'": }
"#;

/// Holder and token, according to this node.
fn held(node: &Lab) -> Option<(String, u64)> {
    let out = node.exec(&["again-fleet", "locks", "--own", "--json"]).out;
    let all: Value = serde_json::from_str(&out).ok()?;
    let one = &all["locks"]["db"];
    Some((one["holder"].as_str()?.to_owned(), one["token"].as_u64()?))
}

/// Waits until this node names a holder with a higher token than this one.
#[track_caller]
fn holder_after(node: &Lab, token: u64) -> (String, u64) {
    node.wait_until("a holder", 90, || held(node).filter(|one| one.1 > token))
}

/// Waits until this node has also run with that holder.
#[track_caller]
fn has_run_with_holder_after(node: &Lab, token: u64) -> (String, u64) {
    let held = holder_after(node, token);
    let line = format!("{} {}\n", held.0, held.1);
    node.wait_until("a run with it", 60, || {
        node.read("/var/log/holders").contains(&line).then_some(())
    });
    held
}

pub fn holder_keeps_its_lock_over_a_reboot_and_loses_it_without_power(fleet: &Fleet) {
    for node in [&fleet.web1, &fleet.lb1] {
        node.write("/root/run.pp", RUN);
        node.write("/var/log/holders", "");
        let manifest = classes(fleet.kind, "", "") + LOCK;
        apply(node, "/root/node.pp", &manifest);
    }
    let first = holder_after(&fleet.web1, 0);
    assert_eq!(holder_after(&fleet.lb1, 0), first);
    let (holder, other) = match &*first.0 {
        "web1.test" => (&fleet.web1, &fleet.lb1),
        _ => (&fleet.lb1, &fleet.web1),
    };

    holder.reboot();
    is_linked(holder, true);
    assert_eq!(
        held(holder).as_ref(),
        Some(&first),
        "a reboot is no failover"
    );
    assert_eq!(held(other).as_ref(), Some(&first));

    holder.power_cut();
    let second = has_run_with_holder_after(other, first.1);
    assert_ne!(second.0, first.0);
    holder.boot_again();
    assert_eq!(has_run_with_holder_after(holder, first.1), second);
    assert_eq!(held(other), Some(second));
}
