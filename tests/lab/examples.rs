//! The examples of the module that change a machine, as they stand: nothing set but what they say themselves, the helper
//! from the module's files. The others run in `tests/module/run`.

use crate::{asks_once_set, delta, nothing_more_happens};
use again_test_support::LOCK_WAIT;
use again_test_support::lab::{Lab, Run};

const EXAMPLES: &str = "/etc/puppet/code/modules/common/examples";

/// A machine that has the module only.
fn machine() -> Lab {
    Lab::boot_with(&[])
}

#[track_caller]
fn apply(lab: &Lab, example: &str) -> String {
    let run = lab.exec(&[
        "puppet",
        "apply",
        "--color=false",
        &format!("{EXAMPLES}/{example}"),
    ]);
    assert_eq!(run.status(), 0, "{run:#?}");
    assert!(!run.err.contains("Error"), "{run:#?}");
    run.out
}

/// A second application changes nothing and asks for nothing.
#[track_caller]
fn is_settled(lab: &Lab, example: &str) {
    let said = apply(lab, example);
    assert!(!said.contains("Notice: /Stage"), "{said}");
    assert!(lab.timers().is_empty());
}

#[test]
fn bootstrap_takes_two_runs_with_a_waiter_or_in_the_foreground() {
    let lab = machine();
    let said = apply(&lab, "bootstrap.pp");
    assert!(said.contains("again: scheduled:"), "{said}");
    assert_eq!(lab.read("/var/tmp/again-example/role"), "");
    lab.wait_for_reruns(1, 60);
    nothing_more_happens(&lab);
    assert_eq!(
        lab.read("/var/tmp/again-example/role"),
        "web, built in run 2\n"
    );
    is_settled(&lab, "bootstrap.pp");

    // The same machine before it knew its role.
    lab.sh("rm -r /var/tmp/again-example /etc/facter; rm /var/log/lab/runs");
    let converge = lab.exec(&[
        "again",
        "converge",
        "--",
        "puppet",
        "apply",
        "--color=false",
        &format!("{EXAMPLES}/bootstrap.pp"),
    ]);
    assert_eq!(converge.status(), 0, "{converge:#?}");
    assert_eq!(lab.runs().len(), 2, "{converge:#?}");
    assert_eq!(
        lab.read("/var/tmp/again-example/role"),
        "web, built in run 2\n"
    );
}

#[test]
fn package_is_followed_by_the_run_that_has_its_fact() {
    let lab = machine();
    let said = apply(&lab, "package.pp");
    assert!(said.contains("again: scheduled:"), "{said}");
    assert_eq!(lab.read("/var/tmp/again-example/store.conf"), "");
    lab.wait_for_reruns(1, 60);
    nothing_more_happens(&lab);
    assert_eq!(
        lab.read("/var/tmp/again-example/store.conf"),
        "store = raid1\n"
    );
    is_settled(&lab, "package.pp");
    lab.sh("dpkg --purge again-example-store");
}

/// The run and the rerun of an agent that asks once, after 3 seconds.
#[track_caller]
fn run_and_rerun(lab: &Lab) -> (Run, Run) {
    lab.wait_for_reruns(1, 60);
    nothing_more_happens(lab);
    let runs = lab.runs();
    let [first, again] = &runs[..] else {
        panic!("not two runs: {runs:#?}")
    };
    let added = LOCK_WAIT.map(str::to_owned);
    assert_eq!(again.argv, [&first.argv[..], &added].concat());
    assert!(
        again.started >= first.ended.unwrap() + 3.0 - 0.02,
        "early: {again:#?}"
    );
    assert!(again.group.ends_with(".scope"), "{again:#?}");
    (first.clone(), again.clone())
}

/// From now on the agent applies a catalog that asks once; runs so far do not count.
fn agent_asks(lab: &Lab) {
    lab.sh("rm /var/log/lab/runs");
    lab.catalog(&asks_once_set("", "", &delta(3)));
}

#[test]
fn cron_runs_the_agent_and_its_rerun() {
    let lab = machine();
    apply(&lab, "cron.pp");
    let job = lab.read("/etc/cron.d/puppet-agent");
    let minutes = job.lines().find(|line| !line.starts_with('#')).unwrap();
    let (first, second) = minutes.split_once(' ').unwrap().0.split_once(',').unwrap();
    let [first, second]: [u32; 2] = [first.parse().unwrap(), second.parse().unwrap()];
    assert!(first < 30 && second == first + 30, "{job}");

    agent_asks(&lab);
    // Cron's own moment for it may be half an hour away: the same job at its start.
    lab.sh("sed -i 's/^[0-9,]* [*] [*] [*] [*]/@reboot/' /etc/cron.d/puppet-agent; grep -q '^@reboot root' /etc/cron.d/puppet-agent");
    lab.sh("rm -f /run/crond.reboot; systemctl restart cron");
    let (run, _) = run_and_rerun(&lab);
    assert!(run.group.contains("cron.service"), "{run:#?}");
    assert!(
        lab.sh("ls /var/mail").is_empty(),
        "a silent job was mailed about"
    );
}

#[test]
fn timer_runs_the_agent_and_its_rerun() {
    let lab = machine();
    apply(&lab, "timer.pp");
    assert_eq!(lab.sh("systemctl is-active puppet-run.timer"), "active\n");
    assert_eq!(lab.sh("systemctl is-enabled puppet-run.timer"), "enabled\n");
    lab.sh("systemd-analyze verify --man=no /etc/systemd/system/puppet-run.*");
    is_settled(&lab, "timer.pp");
    lab.sh("systemctl stop puppet-run.timer");

    agent_asks(&lab);
    // Its timer would be due a minute after the boot, and more.
    lab.sh("systemctl start puppet-run.service");
    let (run, _) = run_and_rerun(&lab);
    assert!(run.group.ends_with("/puppet-run.service"), "{run:#?}");
    assert_eq!(
        lab.sh("systemctl show -P Result puppet-run.service"),
        "success\n"
    );
}
