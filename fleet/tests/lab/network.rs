use again_test_support::Lab;

use crate::fleet::{Fleet, LB1, WEB1, is_linked, ran};

/// Number of seconds within which a silent connection must be noticed, plus the delay of a busy
/// machine.
const NOTICED: f64 = 30.0 + 15.0;

/// Time at which the service of a node last logged that the backend is not reached.
fn lost_at(lab: &Lab) -> f64 {
    let log = lab.sh("journalctl --no-pager -o short-unix -u again-fleet.service");
    let mut lines = log.lines().rev();
    let line = lines.find(|line| line.contains("is not reached"));
    let at = line.and_then(|line| line.split(' ').next()?.parse().ok());
    at.expect("it was lost")
}

/// Each trigger is accepted once, whatever the network does to it.
pub fn is_broken(fleet: &Fleet) {
    let before = ran(&fleet.lb1).len();
    let person = |words: &[&str]| {
        let words = [&["again-fleet", "trigger", "--to", "lb1.test"], words].concat();
        fleet.web1.exec(&words).said()
    };

    // A cable is unplugged for a time too short to be noticed.
    fleet.net.plug(&LB1, false);
    assert!(person(&[]).contains("delivered to"));
    fleet.net.plug(&LB1, true);
    fleet.runs(before + 1);
    fleet.is_settled();

    // All packets are dropped silently.
    for host in [&WEB1, &LB1] {
        fleet.net.pass(host, false);
    }
    let since = fleet.web1.wall();
    let said = person(&[]);
    assert!(said.contains("kept: "), "{said}");
    for node in [&fleet.web1, &fleet.lb1] {
        is_linked(node, false);
        let noticed = lost_at(node) - since;
        assert!((0.0..NOTICED).contains(&noticed), "{noticed} s");
        // Warnings and errors, without the other messages.
        let wrong = node.sh("journalctl --no-pager -o cat -p warning -u again-fleet.service");
        assert!(wrong.contains(" is not reached: "), "{wrong}");
        let is_good = |line: &str| line.ends_with(" is reached");
        assert!(!wrong.lines().any(is_good), "{wrong}");
    }
    for host in [&WEB1, &LB1] {
        fleet.net.pass(host, true);
    }
    fleet.runs(before + 2);
    fleet.is_settled();

    // A connection that takes seconds for each trigger.
    for host in [&WEB1, &LB1] {
        fleet.net.slow(host, 2000);
    }
    let said = person(&["--wait"]);
    assert!(said.contains("1 of 1 node done"), "{said}");
    fleet.runs(before + 3);
    for host in [&WEB1, &LB1] {
        fleet.net.fast(host);
    }
    fleet.is_settled();
    for node in [&fleet.web1, &fleet.lb1] {
        is_linked(node, true);
    }
    assert_eq!(ran(&fleet.lb1).len(), before + 3);
}
