//! The lab itself: what it must be for the other tests to mean anything.

use std::path::Path;
use std::time::Duration;

use again_test_support::{Lab, SHORT, ask_for};

/// A process that leaves its session as any daemon does, and stays for a minute.
const LEAVE: &str = "perl -MPOSIX -e 'exit if fork; POSIX::setsid(); exit if fork; \
    open(STDIN, \"<\", \"/dev/null\"); open(STDOUT, \">\", \"/run/left\"); open(STDERR, \">&STDOUT\"); \
    $| = 1; print $$; sleep 60'; sleep 0.3";

#[test]
fn a_oneshot_service_kills_what_is_left_in_its_group_and_spares_a_scope() {
    let lab = Lab::boot();
    let left = |command: &str| {
        lab.write("/root/leave", command);
        lab.write(
            "/etc/systemd/system/leave.service",
            "[Service]\nType=oneshot\nExecStart=/bin/sh /root/leave\n",
        );
        lab.sh("systemctl daemon-reload; rm -f /run/left; systemctl start leave");
        let pid = lab.wait_until("it has started", 5, || {
            lab.read("/run/left").parse::<u64>().ok()
        });
        lab.group_of(pid)
    };
    assert_eq!(
        left(LEAVE),
        None,
        "a plain daemon outlived its oneshot service"
    );
    assert_eq!(
        left(&format!(
            "systemd-run --scope --quiet --unit=spared {LEAVE}"
        )),
        Some("/system.slice/spared.scope".to_owned())
    );
}

#[test]
fn a_reboot_is_a_new_boot_of_the_same_root() {
    let lab = Lab::boot();
    lab.sh("echo kept >/root/kept; echo gone >/run/gone");
    let before = lab.boot_id();
    assert!(lab.uptime() < 60.0, "the clock since boot is the host's");

    lab.reboot();
    let after = lab.boot_id();
    assert_ne!(before, after);
    assert_eq!(lab.read("/root/kept"), "kept\n");
    assert_eq!(lab.read("/run/gone"), "");
    assert!(
        lab.uptime() < 60.0,
        "the clock since boot goes on over a reboot"
    );

    lab.power_cut();
    lab.boot_again();
    assert_ne!(lab.boot_id(), after);
    assert_eq!(lab.read("/root/kept"), "kept\n");
}

#[test]
fn an_agent_makes_real_runs_without_a_server() {
    let lab = Lab::boot();
    lab.catalog("file { '/root/made': content => 'by the agent' }");
    let run = lab.exec(&[
        "puppet",
        "agent",
        "--onetime",
        "--no-daemonize",
        "--detailed-exitcodes",
    ]);
    assert_eq!(run.status(), 2, "{run:#?}");
    assert_eq!(lab.read("/root/made"), "by the agent");
    let runs = lab.runs();
    assert_eq!(runs.len(), 1);
    assert!(runs[0].ended.is_some_and(|end| end > runs[0].started));
}

fn gone(pid: u32) -> bool {
    let is_gone = || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(());
    ask_for(SHORT, Duration::from_millis(20), is_gone).is_some()
}

#[test]
fn nothing_of_a_lab_outlives_it() {
    let lab = Lab::boot();
    let inside = lab.spawn(&["sleep", "1000"], std::process::Stdio::null());
    let (leader, supervisor) = (lab.leader(), lab.supervisor());
    let groups = || {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let unified = mounts
            .lines()
            .find(|m| m.split(' ').nth(2) == Some("cgroup2"));
        unified.map(|m| {
            Path::new(m.split(' ').nth(1).unwrap()).join(format!("again-lab-{supervisor}"))
        })
    };
    if let Some(group) = groups() {
        assert!(group.exists(), "the lab is not in {}", group.display());
    }
    drop(lab);
    assert!(gone(leader) && gone(supervisor));
    assert!(
        groups().is_none_or(|group| !group.exists()),
        "its control group is still there"
    );
    assert!(
        gone_or_reaped(inside),
        "a process entered from outside is still there"
    );
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains("again-lab"),
        "a mount of the lab is in our own namespace"
    );
}

fn gone_or_reaped(mut child: std::process::Child) -> bool {
    let ended = || child.try_wait().unwrap();
    ask_for(SHORT, Duration::from_millis(20), ended).is_some()
}

/// Whatever happens to the script that holds it.
#[test]
fn a_lab_dies_with_its_supervisor() {
    let lab = Lab::boot();
    let leader = lab.leader();
    let killed = std::process::Command::new("kill")
        .args(["-KILL", &lab.supervisor().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert!(gone(leader), "a booted machine without a holder");
}
