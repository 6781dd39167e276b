//! A `Type=oneshot` service started by a timer, as theforeman/puppet ships it.

use crate::{asks_once, asks_until, delta, marks, nothing_more_happens};
use again_test_support::{LOCK_WAIT, Lab};

const ARGUMENTS: [&str; 7] = [
    "agent",
    "--config",
    "/etc/puppet/puppet.conf",
    "--onetime",
    "--no-daemonize",
    "--detailed-exitcode",
    "--no-usecacheonfailure",
];

fn install(lab: &Lab, more: &str) {
    lab.write(
        "/etc/systemd/system/puppet-run.service",
        &format!(
            "[Unit]\nDescription=Systemd Timer Service for Puppet Agent\nWants=basic.target\n\
             After=basic.target network.target network-online.target\n\n\
             [Service]\nType=oneshot\nExecStart=/usr/bin/puppet {}\nUser=root\nGroup=root\nSuccessExitStatus=2\n{more}",
            ARGUMENTS.join(" ")
        ),
    );
    lab.write(
        "/etc/systemd/system/puppet-run.timer",
        "[Unit]\nDescription=Systemd Timer for Puppet Agent\n[Timer]\nOnActiveSec=1\nAccuracySec=10ms\n",
    );
    lab.sh("systemctl daemon-reload");
}

#[test]
fn the_rerun_of_a_oneshot_service_happens_in_a_scope_of_its_own() {
    let lab = Lab::boot();
    install(&lab, "");
    lab.catalog(&asks_once(&delta(4)));
    lab.sh("systemctl start puppet-run.timer");

    let timer = lab.pending(30);
    let waiter = timer["waiter"]["pid"].as_u64().unwrap();
    assert_eq!(timer["name"], "later");
    let group = lab.group_of(waiter).expect("the waiter lives");
    let scope = group.rsplit('/').next().unwrap();
    assert!(
        scope.starts_with("again") && scope.ends_with(".scope"),
        "the waiter is in {group}"
    );

    // The run ends, and with it the service. The waiter does not.
    lab.wait_until("the service has ended", 30, || {
        (lab.sh("systemctl show -P ActiveState puppet-run.service")
            .trim()
            == "inactive")
            .then_some(())
    });
    assert_eq!(
        lab.sh("systemctl show -P Result puppet-run.service").trim(),
        "success"
    );
    assert_eq!(
        lab.group_of(waiter).as_ref(),
        Some(&group),
        "the waiter died with the service"
    );
    assert_eq!(lab.scopes(), [scope]);
    let seen = lab.sh(&format!("systemctl status --no-pager '{scope}'"));
    assert!(
        seen.contains("later"),
        "systemctl status does not say which timer it is:\n{seen}"
    );
    assert!(
        seen.contains(&format!("{waiter} ")),
        "systemctl status does not show the waiter:\n{seen}"
    );

    let runs = lab.wait_until("the rerun has ended", 40, || {
        let runs = lab.runs();
        (runs.len() == 2 && runs[1].ended.is_some()).then_some(runs)
    });
    let (first, again) = (&runs[0], &runs[1]);
    assert_eq!(
        again.pid, waiter,
        "the waiter became something else than the rerun"
    );
    assert!(
        again.started >= first.ended.unwrap() + 4.0 - 0.02,
        "early: {} after the end",
        again.started - first.ended.unwrap()
    );
    assert_eq!(again.argv, [&ARGUMENTS[..], &LOCK_WAIT].concat());
    assert_eq!(again.group, group);
    assert_eq!(again.var("AGAIN_RUN"), Some("2"));
    assert_eq!(again.stdin, "/dev/null");
    assert!(
        again.stdout.starts_with("/var/log/again/"),
        "its output goes to {}",
        again.stdout
    );
    for name in ["PATH", "HOME", "USER", "LOGNAME", "INVOCATION_ID"] {
        assert_eq!(again.var(name), first.var(name), "{name} is not the run's");
    }

    nothing_more_happens(&lab);
    assert_eq!(marks(&lab).len(), 2);
    assert!(
        lab.log_of(scope).contains("later"),
        "the journal does not know {scope}"
    );
    assert_eq!(lab.sh("systemctl is-system-running").trim(), "running");
}

#[test]
fn a_chain_of_reruns_goes_on_from_scope_to_scope() {
    let lab = Lab::boot();
    install(&lab, "");
    lab.catalog(&asks_until(4));
    lab.sh("systemctl start puppet-run.service");
    let reruns = lab.wait_for_reruns(3, 60);
    let numbers: Vec<_> = reruns.iter().map(|r| r.var("AGAIN_RUN").unwrap()).collect();
    assert_eq!(numbers, ["2", "3", "4"]);
    assert!(
        reruns
            .iter()
            .all(|r| r.var("AGAIN_CHAIN") == reruns[0].var("AGAIN_CHAIN"))
    );
    assert!(
        reruns.iter().all(|r| r.group.ends_with(".scope")),
        "{reruns:#?}"
    );
    assert!(
        reruns
            .windows(2)
            .all(|w| w[1].started >= w[0].ended.unwrap() - 0.02),
        "{reruns:#?}"
    );
    assert!(
        reruns
            .iter()
            .all(|r| r.var("INVOCATION_ID") == lab.runs()[0].var("INVOCATION_ID"))
    );
    nothing_more_happens(&lab);
    assert_eq!(marks(&lab).len(), 4);
}

/// The other side: left in the service's group the waiter dies, and that is neither hidden nor harmful to the service.
#[test]
fn without_a_scope_the_loss_is_reported() {
    let lab = Lab::boot();
    install(&lab, "Environment=AGAIN_SCOPE=never\n");
    lab.catalog(&asks_once(&delta(4)));
    lab.sh("systemctl start puppet-run.service");
    assert_eq!(
        lab.sh("systemctl show -P Result puppet-run.service").trim(),
        "success"
    );
    let timers = lab.wait_until("the loss is shown", 10, || {
        let timers = lab.timers();
        timers
            .iter()
            .any(|timer| timer["state"] == "dead")
            .then_some(timers)
    });
    assert_eq!(timers.len(), 1, "{timers:#?}");
    assert_eq!(lab.runs().len(), 1, "the dead waiter became a rerun");
    let logged = lab.sh("journalctl --no-pager -o cat -t again");
    assert!(
        logged.contains("'later'"),
        "the system log does not tell of the lost rerun: {logged}"
    );
}

/// The unit's own /tmp goes with the unit, and the rerun has one all the same. The unit's limits go along into the scope;
/// where the kernel of this machine shows none in a unified hierarchy, files with the same text stand in for it.
#[test]
fn the_rerun_has_a_tmp_and_the_limits_of_its_unit() {
    let lab = Lab::boot();
    lab.sh("mkdir /root/group");
    for (name, text) in [
        ("memory.max", "943718400\n"),
        ("cpu.max", "150000 100000\n"),
        ("io.weight", "default 50\n"),
    ] {
        lab.write(&format!("/root/group/{name}"), text);
    }
    lab.write(
        "/root/wrapped",
        &format!(
            "mount --bind /root/group /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)\nexec /usr/bin/puppet {}\n",
            ARGUMENTS.join(" ")
        ),
    );
    install(
        &lab,
        "PrivateTmp=yes\nExecStopPost=/bin/sleep 2\nExecStart=\nExecStart=/bin/sh /root/wrapped\n",
    );
    lab.catalog(&format!(
        "{}\nexec {{ '/bin/sh -c \"date > /tmp/written && mktemp /root/written.XXXXXX\"': }}",
        asks_once(&delta(0))
    ));
    lab.sh("systemctl start puppet-run.timer");
    // The timer is pending for a moment only; its scope is also the rerun's.
    let list =
        "systemctl list-units --all --plain --no-legend 'again-later-*.scope' | cut -d' ' -f1";
    let scope = lab.wait_until("a scope", 60, || {
        let name = lab.sh(list).trim().to_owned();
        (!name.is_empty()).then_some(name)
    });
    let properties = "-p MemoryMax -p CPUQuotaPerSecUSec -p IOWeight";
    let shown = lab.sh(&format!("systemctl show {properties} {scope}"));
    for wanted in [
        "MemoryMax=943718400",
        "CPUQuotaPerSecUSec=1.5",
        "IOWeight=50",
    ] {
        assert!(shown.contains(wanted), "{shown}");
    }
    lab.wait_for_reruns(1, 90);
    lab.wait_until("both to have written", 60, || {
        (lab.sh("ls /root | grep -c written || true").trim() == "2").then_some(())
    });
}
