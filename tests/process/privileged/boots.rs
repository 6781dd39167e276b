use std::process::Command;

use again_test_support::{SHORT, Scratch, Started, answer, start, wait_until};
use nix::sys::signal::Signal;

/// Prepares a shell command line as in a unit with `ProcSubset=pid`, which cannot read the id of
/// its boot.
fn without_a_boot_id(scratch: &Scratch, line: &str) -> Command {
    let line = format!("mount -t proc -o subset=pid proc /proc && {line}");
    scratch.line(&["unshare", "--mount", "sh", "-c", &line])
}

/// Prepares a shell command line on this machine with another boot id.
fn under_another_boot(scratch: &Scratch, line: &str) -> Command {
    let id = scratch.write("boot-id", "00112233-4455-6677-8899-aabbccddeeff\n");
    let id = id.display();
    let line = format!("mount --bind '{id}' /proc/sys/kernel/random/boot_id && {line}");
    scratch.line(&["unshare", "--mount", "sh", "-c", &line])
}

/// Prepares a shell command line on another machine, with a boot id of its own.
fn on_another_machine(scratch: &Scratch, line: &str) -> Command {
    let id = scratch.write("machine-id", "00112233445566778899aabbccddeeff\n");
    let line = format!("mount --bind '{}' /etc/machine-id && {line}", id.display());
    under_another_boot(scratch, &line)
}

/// Starts a run of the stand-in in such a unit, which makes a request with this delta and continues
/// until `go`.
fn run_without_a_boot_id(scratch: &Scratch, delta: &str) -> Started {
    let ask = format!(
        "ask('run', '--jitter', '0', '--delta', '{delta}') if NTH == 1\nhold('go') if NTH == 1"
    );
    scratch.write("work/site.pp", &ask);
    let line = format!(
        "ruby --disable-gems {} apply site.pp",
        scratch.at("bin/puppet")
    );
    let run = start(&mut without_a_boot_id(scratch, &line));
    scratch.wait_for_answers("site", 1);
    run
}

#[test]
fn resume_leaves_a_timer_to_its_living_waiter_whose_boot_is_not_known() {
    let scratch = Scratch::new();
    let run = run_without_a_boot_id(&scratch, "0");
    let before = scratch.record();
    for verb in ["resume", "now", "reset", "metrics", "history", "status"] {
        let _ = scratch.again(&[verb]);
        assert_eq!(scratch.record()["timers"], before["timers"], "{verb}");
    }
    let said = scratch.again(&["resume"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let whose = "is owned by a process whose boot ID is unknown; 'again stop' clears it";
    assert!(said.out.contains(whose), "{said:?}");
    assert_eq!(scratch.runs("site").len(), 1, "it starts nothing");
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert!(runs[1].started() > runs[0].ended().expect("ended"));
    wait_until("the rerun to be settled", SHORT, || {
        scratch.again(&["status"]).code == Some(3)
    });
    assert_eq!(scratch.runs("site").len(), 2, "once");
    scratch.assert_nothing_left();
}

#[test]
fn a_dead_waiter_whose_boot_is_not_known_gets_a_successor_that_waits_for_the_run() {
    let scratch = Scratch::new();
    let run = run_without_a_boot_id(&scratch, "0");
    let waiter = scratch.waiter("again");
    waiter.signal(Signal::SIGKILL).expect("killed");
    waiter.wait_until_gone(SHORT);
    let said = scratch.again_well(&["resume"]);
    assert!(said.contains("after the end of its run"), "{said}");
    assert_eq!(scratch.runs("site").len(), 1, "the run goes on");
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert!(runs[1].started() > runs[0].ended().expect("ended"));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

#[test]
fn a_run_whose_boot_is_not_known_replaces_the_timer_that_it_asked_for() {
    let scratch = Scratch::new();
    let manifest = "2.times { |n| ask('run', '--jitter', '0', '--delta', n.to_s) } if NTH == 1\nhold('go') if NTH == 1";
    scratch.write("work/site.pp", manifest);
    let line = format!(
        "ruby --disable-gems {} apply site.pp",
        scratch.at("bin/puppet")
    );
    let run = start(&mut without_a_boot_id(&scratch, &line));
    let asked = scratch.wait_for_answers("site", 2);
    assert!(asked.iter().all(|asked| asked.code == 0), "{asked:?}");
    assert!(
        asked[1].output.contains("it replaces the pending timer"),
        "{asked:?}"
    );
    scratch.release("go");
    run.finish();
    scratch.wait_for_runs("site", 2);
    wait_until("everything to settle", SHORT, || {
        scratch.again(&["status"]).code == Some(3) && scratch.waiters().is_empty()
    });
    assert_eq!(scratch.runs("site").len(), 2, "one rerun");
    assert_eq!(scratch.told("started").len(), 1);
    scratch.assert_nothing_left();
}

#[test]
fn reruns_of_one_target_do_not_overlap_under_two_boot_ids() {
    let scratch = Scratch::new();
    let hold = format!(
        "echo begin >> log; until [ -e '{}' ]; do sleep 0.05; done; echo end >> log",
        scratch.at("go")
    );
    let words = [
        "run", "--jitter", "0", "--name", "far", "--", "/bin/sh", "-c", &hold,
    ];
    scratch.again_well(&words);
    let log = || scratch.text("work/log");
    wait_until("the rerun", SHORT, || log() == "begin\n");
    let before = scratch.record();
    let again = scratch.at("bin/again");
    for verb in [
        "status",
        "resume",
        "stop --run no-such-timer",
        "now",
        "metrics",
    ] {
        let _ = answer(&mut under_another_boot(
            &scratch,
            &format!("{again} {verb}"),
        ));
        assert_eq!(scratch.record()["running"], before["running"], "{verb}");
    }
    let stopped = answer(&mut under_another_boot(
        &scratch,
        &format!("{again} stop --run"),
    ));
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(
        stopped
            .err
            .contains("may be under way, and is another boot's"),
        "{stopped:?}"
    );
    let request = format!(
        "{again} run --jitter 0 --name far -- /bin/sh -c '{}'",
        hold.replace('\'', "'\\''")
    );
    let asked = answer(&mut under_another_boot(&scratch, &request));
    assert_eq!(asked.code, Some(0), "{asked:?}");
    wait_until("the other one to wait", SHORT, || {
        scratch
            .text("state/again.log")
            .contains("waits for the rerun of another boot to end")
    });
    assert_eq!(log(), "begin\n", "no two at once");
    scratch.release("go");
    wait_until("the second rerun", SHORT, || {
        log() == "begin\nend\nbegin\nend\n"
    });
    wait_until("everything to settle", SHORT, || {
        scratch.again(&["status"]).code == Some(3) && scratch.waiters().is_empty()
    });
    scratch.assert_nothing_left();
}

/// The window is shorter than this boot.
#[test]
fn starts_count_by_the_wall_clock_on_another_machine_and_under_another_boot() {
    for (elsewhere, named) in [
        (
            on_another_machine as fn(&Scratch, &str) -> Command,
            "3 (3 of another machine) of at most 3",
        ),
        (under_another_boot, "3 of at most 3"),
        (without_a_boot_id, "3 of at most 3"),
    ] {
        let scratch = Scratch::new();
        let cap = [
            "--window",
            "60s",
            "--max-runs",
            "3",
            "--jitter",
            "0",
            "--",
            "/bin/true",
        ];
        for nth in 1..=3 {
            scratch.again_well(&[&["run"], &cap[..]].concat());
            wait_until("the rerun", SHORT, || scratch.told("started").len() == nth);
            scratch.wait_until_settled();
        }
        let request = format!("{} run {}", scratch.at("bin/again"), cap.join(" "));
        let refused = answer(&mut elsewhere(&scratch, &request));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains(named), "{refused:?}");
        scratch.assert_nothing_left();
    }
}

#[test]
fn a_start_dated_ahead_by_another_machine_counts_and_the_line_names_clock_and_reset() {
    let scratch = Scratch::new();
    let cap = ["--max-runs", "1", "--jitter", "0", "--", "/bin/true"];
    let request = format!("{} run {}", scratch.at("bin/again"), cap.join(" "));
    let line = format!("{request} && sleep 1");
    assert_eq!(
        answer(&mut on_another_machine(&scratch, &line)).code,
        Some(0)
    );
    wait_until("the rerun", SHORT, || scratch.told("started").len() == 1);
    let path = scratch.target().join("state.json");
    let mut record = scratch.record();
    let wall = record["starts"][0]["at"]["wall"].as_u64().expect("a time");
    record["starts"][0]["at"]["wall"] = (wall + 86_400_000).into();
    std::fs::write(path, record.to_string()).expect("written");
    let refused = scratch.again(&[&["run"], &cap[..]].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let named = "1 dated later than this machine's clock; check both clocks, or run 'again reset'";
    assert!(refused.err.contains(named), "{refused:?}");
    scratch.again_well(&["reset"]);
    scratch.again_well(&[&["run"], &cap[..]].concat());
    wait_until("the second rerun", SHORT, || {
        scratch.told("started").len() == 2
    });
    let _ = scratch.again(&["stop", "--run"]);
    wait_until("everything to settle", SHORT, || {
        scratch.waiters().is_empty()
    });
}
