//! Reboots and power cuts while a timer is pending.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::put_off_own_runs;
use crate::{asks_once, asks_once_set, delta, marks, nothing_more_happens};
use again_test_support::lab::{Lab, Run};

/// A run that asks for another one in so many seconds; gives it back once it has ended.
fn ask(lab: &Lab, seconds: u32) -> (Run, Value) {
    ask_with(lab, "", seconds)
}

fn ask_with(lab: &Lab, settings: &str, seconds: u32) -> (Run, Value) {
    lab.manifest(&asks_once_set(settings, "", &delta(seconds)));
    let run = lab.exec(&[
        "LAB=secret of the run",
        "puppet",
        "apply",
        "--color=false",
        "/root/site.pp",
    ]);
    assert!(run.out.contains("again: scheduled:"), "{run:#?}");
    let timer = lab.pending(5);
    (lab.runs().pop().unwrap(), timer)
}

/// Sleeps until a moment of the wall clock.
fn sleep_until(moment: f64) {
    let due = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(moment);
    let left = due.duration_since(SystemTime::now());
    // Time itself is tested: a timer becomes due.
    std::thread::sleep(left.unwrap_or_default());
}

#[track_caller]
fn one_rerun_in_this_boot(lab: &Lab, first: &Run, seconds: f64, limit: u64) -> Run {
    let reruns = lab.wait_for_reruns(1, limit);
    let again = &reruns[0];
    assert_eq!(again.boot, lab.boot_id());
    assert_ne!(again.boot, first.boot);
    let after = again.started_at - first.ended_at.unwrap();
    assert!(
        after >= seconds - 0.02,
        "early: {after} s after the run, not {seconds}"
    );
    assert_eq!(again.argv, first.argv);
    assert_eq!(again.var("AGAIN_RUN"), Some("2"));
    assert_eq!(again.var("HOME"), first.var("HOME"));
    assert_eq!(again.var("PATH"), first.var("PATH"));
    assert!(
        again.stdout.starts_with("/var/log/again/"),
        "its output goes to {}",
        again.stdout
    );
    nothing_more_happens(lab);
    assert_eq!(lab.reruns().len(), 1);
    assert_eq!(marks(lab).len(), 2);
    again.clone()
}

#[test]
fn a_pending_timer_survives_a_reboot_and_fires_once_not_before_it_is_due() {
    let lab = Lab::boot();
    let (first, timer) = ask(&lab, 30);
    lab.reboot();
    // Whatever looks after what is pending.
    assert!(lab.uptime() < 30.0, "the boot took {} s", lab.uptime());

    let armed = lab.pending(15);
    assert_eq!(armed["name"], "later");
    assert_eq!(armed["chain"], timer["chain"]);
    assert!(lab.reruns().is_empty(), "early");
    let waiter = armed["waiter"]["pid"].as_u64().unwrap();
    assert_eq!(
        lab.sh("systemctl show -P Result again-resume.service")
            .trim(),
        "success"
    );
    assert!(
        lab.group_of(waiter).unwrap().ends_with(".scope"),
        "the waiter is in {:?}",
        lab.group_of(waiter)
    );
    // The unit started once more does not make a second waiter.
    lab.sh("systemctl restart again-resume.service; again resume");
    assert_eq!(lab.pending(5)["waiter"]["pid"].as_u64(), Some(waiter));
    let again = one_rerun_in_this_boot(&lab, &first, 30.0, 50);
    assert_eq!(again.pid, waiter);
    assert_eq!(
        again.var("LAB"),
        Some("secret of the run"),
        "not the run's environment"
    );
}

/// Nothing of the environment is on disk, and the resumed run has a clean one.
#[test]
fn without_save_environment_a_resumed_run_starts_from_a_clean_one() {
    let lab = Lab::boot();
    let (first, _) = ask_with(&lab, "pending => { 'save_environment' => false }", 5);
    assert_eq!(
        lab.sh("grep -rl 'secret of the run' /var/lib/again || true"),
        ""
    );
    lab.power_cut();
    lab.boot_again();
    let again = one_rerun_in_this_boot(&lab, &first, 5.0, 40);
    assert_eq!(again.var("LAB"), None);
}

/// Due while the machine was down: it runs soon after the boot, once.
#[test]
fn a_timer_that_fell_due_while_the_machine_was_off_fires_after_the_boot() {
    let lab = Lab::boot();
    let (first, _) = ask(&lab, 5);
    let before = Instant::now();
    lab.shutdown();
    let took = before.elapsed();
    assert!(
        took < Duration::from_secs(60),
        "the waiter held up the shutdown: {took:?}"
    );
    sleep_until(first.ended_at.unwrap() + 5.0);
    lab.boot_again();
    let again = one_rerun_in_this_boot(&lab, &first, 5.0, 30);
    assert!(
        again.started < 15.0,
        "only {} s after the boot",
        again.started
    );
}

/// Nobody was told to end: what was promised must have been on disk already. Killed the moment the request is acknowledged.
#[test]
fn a_pending_timer_survives_a_power_cut() {
    let lab = Lab::boot();
    let (first, _) = ask(&lab, 12);
    lab.power_cut();
    lab.boot_again();
    lab.pending(15);
    one_rerun_in_this_boot(&lab, &first, 12.0, 40);
}

/// Two reboots in a row, the second as soon as the timer is armed again.
#[test]
fn a_timer_survives_a_second_reboot_and_its_rerun_is_not_repeated_by_a_third() {
    let lab = Lab::boot();
    let (first, _) = ask(&lab, 15);
    lab.reboot();
    lab.pending(15);
    lab.reboot();
    lab.pending(15);
    one_rerun_in_this_boot(&lab, &first, 15.0, 40);
    lab.reboot();
    nothing_more_happens(&lab);
}

/// Without its boot unit nothing arms a timer again; it stays on record, and says so.
#[test]
fn without_resume_a_timer_of_an_earlier_boot_is_shown_as_dead() {
    let lab = Lab::boot();
    let (first, _) = ask(&lab, 5);
    lab.sh("systemctl disable --quiet again-resume.service");
    lab.reboot();
    sleep_until(first.ended_at.unwrap() + 6.0);
    assert!(
        lab.reruns().is_empty(),
        "something else than the boot unit armed it"
    );
    let timers = lab.timers();
    assert!(
        timers.len() == 1 && timers[0]["state"] == "dead",
        "{timers:#?}"
    );
    lab.exec(&["again", "resume"]).ok();
    lab.wait_for_reruns(1, 20);
    nothing_more_happens(&lab);
}

/// Nothing tells a machine whose id is made up at each boot from another one. What it leaves alone it does not pass over in silence.
#[test]
fn a_machine_with_another_id_in_each_boot_says_what_it_leaves_alone() {
    let lab = Lab::boot();
    lab.sh("rm -f /var/lib/dbus/machine-id; echo uninitialized >/etc/machine-id");
    // Each boot is a first boot then, which enables what the distribution presets.
    lab.write("/etc/systemd/system-preset/00-lab.preset", "disable *\n");
    lab.sh("systemctl mask --quiet systemd-machine-id-commit.service systemd-firstboot.service");
    lab.reboot();
    let (first, _) = ask(&lab, 5);
    let id = lab.read("/etc/machine-id");
    lab.reboot();
    assert_ne!(lab.read("/etc/machine-id"), id);
    sleep_until(first.ended_at.unwrap() + 6.0);
    let timers = lab.timers();
    assert!(
        timers.len() == 1 && timers[0]["state"] == "foreign",
        "{timers:#?}"
    );
    let whose = "another machine's or an earlier boot's, since this one's /etc/machine-id is made up at each boot";
    let seen = lab.sh("again status");
    assert!(seen.contains(whose), "{seen}");
    let log =
        lab.sh("journalctl --quiet --no-pager --output cat --boot --unit again-resume.service");
    assert!(log.contains(whose), "{log}");
    lab.sh("again stop");
    nothing_more_happens(&lab);
    assert!(lab.reruns().is_empty());
}

/// The daemon's timer, with the daemon back after the boot, and its own run at the boot in between.
#[test]
fn a_timer_of_the_daemon_survives_a_reboot() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(25)));
    lab.sh("systemctl enable --now --quiet puppet");
    let timer = lab.pending(40);
    let mark = marks(&lab).remove(0);
    let asked_by = mark.pid;
    // When it was seen last: when it made its mark, or later.
    let mut ended = lab.wall() - lab.uptime() + mark.uptime;
    lab.wait_until("the run has ended", 20, || {
        let now = lab.wall();
        let is_there = lab.group_of(asked_by).is_some();
        if is_there {
            ended = now;
        }
        (!is_there).then_some(())
    });
    lab.reboot();
    assert_eq!(lab.pending(20)["chain"], timer["chain"]);
    let reruns = lab.wait_for_reruns(1, 60);
    assert!(reruns[0].started_at >= ended - 0.5 + 25.0, "early");
    assert!(reruns[0].argv.iter().any(|a| a == "--onetime"));
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

/// Due while the machine was down, and resumed when the daemon has only just been started.
#[test]
fn a_timer_of_the_daemon_that_fell_due_while_the_machine_was_off_fires_after_the_boot() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(5)));
    lab.sh("systemctl enable --now --quiet puppet");
    lab.pending(40);
    let asked_by = marks(&lab)[0].pid;
    lab.wait_until("the run has ended", 20, || {
        lab.group_of(asked_by).is_none().then_some(())
    });
    put_off_own_runs(&lab);
    let ended = lab.wall();
    lab.shutdown();
    sleep_until(ended + 5.0);
    lab.boot_again();
    lab.wait_for_reruns(1, 60);
    nothing_more_happens(&lab);
    assert_eq!(lab.reruns().len(), 1);
}

/// The same, but the service does not come back: its timer does not either.
#[test]
fn a_timer_of_the_daemon_ends_if_the_service_is_not_back_after_the_boot() {
    let lab = Lab::boot();
    lab.catalog(&asks_once(&delta(10)));
    lab.sh("systemctl start puppet");
    lab.pending(40);
    lab.reboot();
    lab.wait_until("the timer has ended", 40, || {
        lab.timers().is_empty().then_some(())
    });
    assert!(
        lab.history().contains("stopped with the service"),
        "the history does not say so:\n{}",
        lab.history()
    );
    nothing_more_happens(&lab);
    assert!(lab.reruns().is_empty());
}
