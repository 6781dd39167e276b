use crate::fleet::{Fleet, Kind, applied, apply, check, is_linked, ran, reported};
use crate::network;

/// Manifest with a change on web1 that another run would not make again.
const FIRE: &str = "
file { '/root/changes': content => 'CONTENT' }
~> trigger { 'look again': hosts => ['lb1.test'], provider => 'BACKEND', wait => true }
";

/// A change causes one run; no change causes none.
fn fires(fleet: &Fleet) {
    let manifest = FIRE.replace("BACKEND", fleet.kind.name());
    apply(
        &fleet.web1,
        "/root/fire.pp",
        &manifest.replace("CONTENT", "1"),
    );
    let said = reported(&fleet.web1);
    let delivered = format!("delivered to {} for 1 node: lb1.test", fleet.kind.name());
    for words in [
        &delivered,
        "lb1.test: taken",
        "lb1.test: started",
        "lb1.test: changed",
        "1 of 1 node done",
    ] {
        assert!(said.contains(words), "no '{words}' in {said}");
    }
    fleet.runs(1);
    // The same manifest again, and a noop run.
    let (status, _) = applied(&fleet.web1, "/root/fire.pp", &[]);
    assert_eq!((status, reported(&fleet.web1).as_str()), (0, ""));
    fleet
        .web1
        .write("/root/fire.pp", &manifest.replace("CONTENT", "2"));
    applied(&fleet.web1, "/root/fire.pp", &["--noop"]);
    let said = reported(&fleet.web1);
    assert!(said.contains("Would have triggered 'refresh'"), "{said}");
    fleet.is_settled();
    assert_eq!(ran(&fleet.lb1).len(), 1);
}

/// The target's service is stopped, or the machine rebooted, and started again.
fn target_is_off(fleet: &Fleet) {
    fleet.lb1.sh("systemctl stop again-fleet.service");
    assert!(fleet.fire("").contains("delivered to"));
    fleet.lb1.sh("systemctl start again-fleet.service");
    fleet.runs(2);

    fleet.lb1.power_cut();
    // Two triggers for the same reason cause one run.
    for _ in 0..2 {
        assert!(fleet.fire("").contains("delivered to"));
    }
    fleet.lb1.boot_again();
    fleet.runs(3);

    // A reboot between the trigger and its run.
    assert!(fleet.fire("delta => 20").contains("delivered to"));
    fleet.lb1.wait_until("it is taken", 30, || {
        fleet
            .lb1
            .history()
            .matches("\"requested\"")
            .nth(3)
            .map(drop)
    });
    fleet.lb1.reboot();
    fleet.runs(4);
    fleet.is_settled();
}

/// The target comes back too late.
fn target_is_late(fleet: &Fleet) {
    fleet.lb1.shutdown();
    let (status, said) = fleet.try_to_fire("ttl => 3, wait => true");
    assert!(
        status == 6 && said.contains("lb1.test  no word yet"),
        "{status}: {said}"
    );
    fleet.lb1.boot_again();
    fleet.web1.wait_until("the news", 60, || {
        let log = fleet.web1.log_of("again-fleet.service");
        log.contains("'look again' for lb1.test is expired: fired at")
            .then_some(())
    });
    fleet.is_settled();
    assert_eq!(ran(&fleet.lb1).len(), 4);
}

/// The backend is down, and a node restarts meanwhile.
fn backend_is_away(fleet: &Fleet) {
    fleet.backend(false);
    for node in [&fleet.web1, &fleet.lb1] {
        is_linked(node, false);
    }
    let said = fleet.fire("");
    assert!(
        said.contains("kept: ")
            && said.contains("cannot be reached")
            && said.contains("sent until"),
        "{said}"
    );
    fleet.web1.reboot();
    let (_, outbox) = fleet.web1.wait_until("the service", 30, || {
        Some(check(&fleet.web1, "outbox")).filter(|(_, what)| !what.is_empty())
    });
    assert!(outbox.starts_with("1 trigger"), "{outbox}");
    fleet.backend(true);
    fleet.runs(5);
    fleet.is_settled();
    assert_eq!(ran(&fleet.lb1).len(), 5);
}

fn once(kind: Kind) {
    // With a short skew, a trigger is soon too late.
    let fleet = Fleet::with(kind, "skew => '1s', cap_share => 100,");
    fires(&fleet);
    target_is_off(&fleet);
    target_is_late(&fleet);
    backend_is_away(&fleet);
    network::is_broken(&fleet);
}

#[test]
fn a_change_on_one_node_runs_puppet_once_on_another_whatever_is_away_over_etcd() {
    once(Kind::Etcd);
}

mod nightly {
    use super::*;

    #[test]
    fn a_change_on_one_node_runs_puppet_once_on_another_whatever_is_away_over_nats() {
        once(Kind::Nats);
    }
}
