use std::process::{Child, Stdio};

use crate::fleet::{Fleet, Kind, ran, set};
use crate::locks;

/// A container has no clock of its own: its processes see another time through a library.
const OTHER_CLOCK: &str = "[Service]
Environment=LD_PRELOAD=/srv/clock.so FAKETIME_TIMESTAMP_FILE=/etc/faketimerc
Environment=FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1
";

/// Command on web1 that sends a trigger and waits for its outcome.
struct Waits<'a>(&'a Fleet, Child);

impl<'a> Waits<'a> {
    fn new(fleet: &'a Fleet, options: &str) -> Waits<'a> {
        let script =
            format!("exec again-fleet trigger --to lb1.test --wait {options} >/root/told 2>&1");
        fleet.web1.sh("rm -f /root/told");
        let child = fleet.web1.spawn(&["sh", "-c", &script], Stdio::null());
        Waits(fleet, child)
    }

    #[track_caller]
    fn is_told(&self, words: &str) {
        self.0.web1.wait_until(words, 90, || {
            self.0.web1.read("/root/told").contains(words).then_some(())
        });
    }

    /// Waits for the end of the command; returns all of its output.
    fn ends(mut self) -> String {
        self.1.wait().expect("its end");
        self.0.web1.read("/root/told")
    }
}

#[test]
fn node_runs_what_it_held_once_and_keeps_its_lock_over_a_reboot() {
    let fleet = Fleet::new(Kind::Etcd);
    disabled(&fleet);
    stopped(&fleet);
    capped(&fleet);
    clock_is_off(&fleet);
    locks::holder_keeps_its_lock_over_a_reboot_and_loses_it_without_power(&fleet);
}

fn disabled(fleet: &Fleet) {
    fleet.lb1.sh("again disable a longer job");
    let waits = Waits::new(fleet, "");
    waits.is_told("lb1.test: held: ");
    waits.is_told("a longer job");
    let is_there = |key: &String| key.starts_with("to/lb1=test/");
    assert!(fleet.keys().iter().any(is_there));
    assert!(ran(&fleet.lb1).is_empty());
    // The log has the reason, for senders that do not wait.
    let log = fleet.web1.log_of("again-fleet.service");
    assert!(log.contains("'again' for lb1.test is held: "), "{log}");
    let enabled = fleet.lb1.uptime();
    fleet.lb1.sh("again enable");
    let waited = fleet.runs(1)[0].started - enabled;
    assert!(waited < 30.0, "{waited} s");
    assert!(waits.ends().contains("lb1.test: changed"));
}

fn stopped(fleet: &Fleet) {
    let waits = Waits::new(fleet, "--delta 1h");
    waits.is_told("lb1.test: taken");
    fleet.lb1.sh("again stop again-fleet");
    let told = waits.ends();
    assert!(
        told.contains("stopped") && told.contains("1 failed"),
        "{told}"
    );
}

/// The previous run has reached the cap.
fn capped(fleet: &Fleet) {
    let helper = "max_runs => 1, window => '30s'";
    set(&fleet.lb1, fleet.kind, helper, "cap_share => 100,");
    assert!(Waits::new(fleet, "").ends().contains("lb1.test: changed"));
    assert!(Waits::new(fleet, "").ends().contains("lb1.test: changed"));
    let runs = fleet.runs(3);
    let apart = runs[2].started - runs[1].started;
    assert!(apart > 29.0, "{apart} s");
    set(&fleet.lb1, fleet.kind, "", "cap_share => 100,");
}

/// The clock is an hour behind, then an hour ahead.
fn clock_is_off(fleet: &Fleet) {
    let clock = |offset: &str| fleet.lb1.write("/etc/faketimerc", offset);
    clock("-1h");
    for side in ["again-fleet.service", "again-fleet-executor.service"] {
        let file = format!("/etc/systemd/system/{side}.d/clock.conf");
        fleet.lb1.write(&file, OTHER_CLOCK);
    }
    fleet
        .lb1
        .sh("systemctl daemon-reload; systemctl stop again-fleet-executor.service; systemctl restart again-fleet.service");
    let waits = Waits::new(fleet, "");
    waits.is_told("lb1.test: held: fired at ");
    waits.is_told(" by the clock of web1.test, here it is ");
    clock("+0");
    // The trigger is accepted without another request, within a minute.
    waits.is_told("lb1.test: changed");
    fleet.runs(4);

    clock("+1h");
    let told = Waits::new(fleet, "--ttl 10m").ends();
    assert!(
        told.contains("lb1.test: expired: fired at ") && told.contains("for 10m, here it is "),
        "{told}"
    );
    assert_eq!(ran(&fleet.lb1).len(), 4);
    fleet.is_settled();
    fleet.lb1.sh(
        "rm /etc/systemd/system/again-fleet*.service.d/clock.conf; systemctl daemon-reload
        systemctl stop again-fleet-executor.service; systemctl restart again-fleet.service",
    );
}
