//! systemd is there, and gives no scope.

use crate::{asks_once, nothing_more_happens};
use again_test_support::lab::{Lab, Run};

/// Runs in a service that leaves its children alone, so that the fallback has a chance.
fn falls_back_and_says_so(lab: &Lab, more: &str) -> Vec<Run> {
    lab.manifest(&asks_once("Exec['again']"));
    lab.write(
        "/etc/systemd/system/apply.service",
        &format!(
            "[Service]\nType=oneshot\nKillMode=process\n{more}\
             ExecStart=/usr/bin/puppet apply --color=false /root/site.pp\n"
        ),
    );
    lab.sh("systemctl daemon-reload; systemctl start apply");
    let log = lab.log_of("apply");
    let line = log
        .lines()
        .find(|line| line.contains("again: scheduled:"))
        .unwrap_or_else(|| panic!("the Exec says nothing:\n{log}"));
    assert!(
        line.contains("scope"),
        "the Exec's line does not speak of the scope: {line}"
    );
    let reruns = lab.wait_for_reruns(1, 30);
    assert!(
        reruns[0].group.ends_with("/apply.service"),
        "not the fallback: {}",
        reruns[0].group
    );
    nothing_more_happens(lab);
    reruns
}

#[test]
fn where_systemd_run_is_missing_the_request_says_so_and_falls_back() {
    let lab = Lab::boot();
    lab.sh("mv /usr/bin/systemd-run /usr/bin/systemd-run.away");
    falls_back_and_says_so(&lab, "");
}

#[test]
fn where_systemd_run_refuses_the_request_says_so_and_falls_back() {
    let lab = Lab::boot();
    // Neither of systemd's sockets can be reached from the service: systemd-run exits 1.
    falls_back_and_says_so(
        &lab,
        "InaccessiblePaths=/run/systemd/private /run/dbus/system_bus_socket\n",
    );
}

/// Before 253 (its NEWS) a scope has no OOMPolicy: the scope is made without it.
#[test]
fn an_older_systemd_gives_a_scope_all_the_same() {
    let lab = Lab::boot();
    lab.sh("mv /usr/bin/systemd-run /usr/bin/systemd-run.away");
    lab.write(
        "/usr/bin/systemd-run",
        "#!/bin/sh\ncase \"$*\" in *OOMPolicy=*)\n  echo 'Unknown assignment: OOMPolicy=continue' >&2; exit 1\nesac\nexec /usr/bin/systemd-run.away \"$@\"\n",
    );
    lab.sh("chmod 755 /usr/bin/systemd-run");
    lab.manifest(&asks_once("Exec['again']"));
    lab.write(
        "/etc/systemd/system/apply.service",
        "[Service]\nType=oneshot\nExecStart=/usr/bin/puppet apply --color=false /root/site.pp\n",
    );
    lab.sh("systemctl daemon-reload; systemctl start apply");
    let reruns = lab.wait_for_reruns(1, 30);
    let scope = reruns[0].group.rsplit('/').next().unwrap_or_default();
    assert!(
        scope.starts_with("again-") && scope.ends_with(".scope"),
        "{}",
        reruns[0].group
    );
    nothing_more_happens(&lab);
}

#[test]
fn a_systemd_that_never_answers_does_not_hold_up_the_run() {
    let lab = Lab::boot();
    lab.sh("mv /usr/bin/systemd-run /usr/bin/systemd-run.away");
    lab.write("/usr/bin/systemd-run", "#!/bin/sh\nexec sleep 600\n");
    lab.sh("chmod 755 /usr/bin/systemd-run");
    falls_back_and_says_so(&lab, "");
    let run = &lab.runs()[0];
    let took = run.ended.unwrap() - run.started;
    assert!(took < 60.0, "the run took {took} s");
    assert_eq!(
        lab.sh("pgrep -xf 'sleep 600' || true"),
        "",
        "the one that hung was left behind"
    );
}
