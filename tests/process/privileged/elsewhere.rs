use std::fs;
use std::process::Command;

use again_test_support::{Ended, SHORT, Scratch, answer, start, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Prepares a shell command line in another pid namespace of this machine.
fn in_a_container(scratch: &Scratch, line: &str) -> Command {
    scratch.line(&[
        "unshare",
        "--pid",
        "--mount-proc",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        line,
    ])
}

/// Prepares a shell command line on a machine that shares the directory, or on a copy of this
/// machine from an image.
fn on_another_machine(scratch: &Scratch, line: &str) -> Command {
    let id = scratch.write("machine-id", "00112233445566778899aabbccddeeff\n");
    let line = format!("mount --bind '{}' /etc/machine-id && {line}", id.display());
    scratch.line(&["unshare", "--mount", "sh", "-c", &line])
}

const LOOKS: [&str; 3] = ["status --json", "metrics", "history"];

/// Starts a run that requests a rerun, which continues until `go`, and a later one.
fn under_way(scratch: &Scratch) {
    let manifest = "ask('run', '--name', 'later', '--delta', '1h') if NTH == 1\n\
        ask('run') if NTH == 1\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    wait_until("the rerun", SHORT, || scratch.runs("site").len() == 2);
}

/// A command from elsewhere cannot see the rerun's process. It does not consider it ended, and
/// writes nothing: the next rerun waits for it.
#[test]
fn again_does_not_take_a_rerun_of_another_machine_for_ended() {
    for elsewhere in [in_a_container, on_another_machine] {
        let scratch = Scratch::new();
        under_way(&scratch);
        let before = scratch.record();
        let pid = before["running"][0]["process"]["pid"].clone();
        for verb in LOOKS {
            let line = format!("{} {verb}", scratch.at("bin/again"));
            let seen = answer(&mut elsewhere(&scratch, &line));
            assert_eq!(seen.err, "", "{verb}");
            if verb.starts_with("status") {
                let seen: Value = seen.json();
                let target = &seen["targets"][0];
                assert_eq!(target["running"]["pid"], pid, "{seen:#}");
                assert_eq!(target["timers"][0]["state"], "foreign", "{seen:#}");
            }
        }
        assert_eq!(scratch.record(), before);
        for verb in ["resume", "reset", "now", "stop --run no-such-timer"] {
            let line = format!("{} {verb}", scratch.at("bin/again"));
            let _: Ended = answer(&mut elsewhere(&scratch, &line));
            let record = scratch.record();
            assert_eq!(record["running"], before["running"], "{verb}");
            assert_eq!(record["timers"], before["timers"], "{verb}");
        }
        scratch.again_well(&["now", "later"]);
        let waiter = scratch.waiter("later");
        wait_until("the next one to wait", SHORT, || {
            waiter.title().contains("waits for the run with pid")
        });
        assert_eq!(scratch.runs("site").len(), 2, "no two at once");
        scratch.release("go");
        let runs = scratch.wait_for_runs("site", 3);
        assert!(runs[2].started() > runs[1].ended().expect("ended"));
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

/// The waiter is elsewhere, the rerun here. They share the lock that the rerun has inherited.
#[test]
fn waiter_waits_for_a_rerun_of_another_pid_namespace() {
    let scratch = Scratch::new();
    under_way(&scratch);
    let line = format!(
        "ruby --disable-gems {} apply site.pp; until [ -e done ]; do sleep 0.1; done",
        scratch.at("bin/puppet")
    );
    scratch.write(
        "work/site.pp",
        "ask('run') if NTH == 3\nhold('go') if NTH == 2",
    );
    let there = in_a_container(&scratch, &line);
    let container = start(&mut scratch.without_system_log(&there));
    wait_until("the request from there", SHORT, || {
        scratch
            .text("state/again.log")
            .contains("waits for the rerun of another pid namespace")
            || scratch.runs("site").len() > 3
    });
    assert_eq!(scratch.runs("site").len(), 3, "no two at once");
    scratch.release("go");
    wait_until("the rerun there", SHORT, || scratch.runs("site").len() == 4);
    let runs = scratch.runs("site");
    assert!(runs[3].started() > runs[1].ended().expect("ended"));
    scratch.release("work/done");
    container.finish();
    scratch.again_well(&["stop", "--run"]);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A copy of the directory, in an image that was captured with a pending timer, or a directory
/// shared with another machine: only the machine of the request resumes it.
#[test]
fn resume_leaves_a_timer_of_another_machine_alone() {
    let scratch = Scratch::new();
    let stamp = [
        &scratch.at("bin/helper"),
        "stamp",
        &scratch.at("stamps"),
        "x",
    ];
    scratch.again_well(&[&["run", "--delta", "1h", "--"], &stamp[..]].concat());
    let waiter = scratch.waiter("again");
    waiter.signal(Signal::SIGKILL).expect("killed");
    waiter.wait_until_gone(SHORT);
    let before = scratch.record();
    let again = scratch.at("bin/again");
    let resumed = answer(&mut on_another_machine(
        &scratch,
        &format!("{again} resume"),
    ));
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(
        resumed
            .out
            .contains("left alone: timer 'again' of command is another machine's"),
        "{resumed:?}"
    );
    let seen = answer(&mut on_another_machine(
        &scratch,
        &format!("{again} status"),
    ));
    assert!(seen.out.contains("it is another machine's"), "{seen:?}");
    assert_eq!(scratch.record(), before);
    scratch.again_well(&["resume"]);
    scratch.again_well(&["now"]);
    wait_until("the rerun", SHORT, || scratch.stamps().len() == 1);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A machine without an id, or with one that is generated at each boot, is only distinguished from
/// another by its boot: systemd mounts such an id from /run.
#[test]
fn again_knows_a_machine_without_a_lasting_id_by_its_boot() {
    told_by_its_boot("", "this one has no /etc/machine-id");
    told_by_its_boot(
        "0123456789abcdef0123456789abcdef\n",
        "this one's /etc/machine-id is made up at each boot",
    );
}

fn told_by_its_boot(id: &str, why: &str) {
    let scratch = Scratch::new();
    let again = scratch.at("bin/again");
    let run = scratch.write("run/machine-id", id);
    let run = run.parent().expect("a directory").display();
    let line = |verb: &str| {
        let line = format!(
            "mount --bind {run} /run && mount --bind /run/machine-id /etc/machine-id && {again} {verb}"
        );
        answer(&mut scratch.line(&["unshare", "--mount", "sh", "-c", &line]))
    };
    assert_eq!(line("run --delta 1h -- /bin/true").code, Some(0));
    let seen = line("status --json").json();
    assert_eq!(
        seen["targets"][0]["timers"][0]["state"], "waiting",
        "{seen:#}"
    );
    // As after a reboot.
    let waiter = scratch.only_waiter();
    waiter.signal(Signal::SIGKILL).expect("killed");
    waiter.wait_until_gone(SHORT);
    let path = scratch.target().join("state.json");
    let mut record = scratch.record();
    let timer = &mut record["timers"]["again"];
    timer["boot"] = "another".into();
    timer["place"] = serde_json::json!({ "machine": 7, "pids": timer["place"]["pids"] });
    fs::write(path, record.to_string()).expect("written");
    let whose = format!("is another machine's or an earlier boot's, since {why}");
    for verb in ["resume", "status"] {
        let said = line(verb);
        assert!(said.out.contains(&whose), "{said:?}");
    }
    assert_eq!(line("stop").code, Some(0));
    scratch.assert_nothing_left();
}

/// On a shared directory two machines make the same request: neither removes the other's rerun.
/// After a `stop`, the next command on the waiter's machine ends the waiter.
#[test]
fn request_does_not_replace_a_timer_of_another_machine() {
    for (elsewhere, whose) in [
        (
            in_a_container as fn(&Scratch, &str) -> Command,
            "another pid namespace",
        ),
        (on_another_machine, "another machine"),
    ] {
        let scratch = Scratch::new();
        let request = ["run", "--delta", "1h", "--", "/bin/true"];
        scratch.again_well(&request);
        let (waiter, before) = (scratch.waiter("again"), scratch.record());
        let there = |words: &str| {
            let line = format!("{} {words}", scratch.at("bin/again"));
            answer(&mut elsewhere(&scratch, &line))
        };
        let refused = there(&request.join(" "));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let said = format!("again: refused: a timer 'again' of {whose} is pending");
        assert!(refused.err.contains(&said), "{refused:?}");
        assert_eq!(scratch.record()["timers"], before["timers"]);
        scratch.again_well(&["disable"]);
        let disabled = there(&request.join(" "));
        assert_eq!(disabled.code, Some(0), "{disabled:?}");
        scratch.again_well(&["enable"]);

        assert_eq!(there("stop again").code, Some(0));
        assert!(waiter.alive(), "only its own machine may end it");
        scratch.again_well(&["stop"]);
        waiter.wait_until_gone(SHORT);
        scratch.assert_nothing_left();
    }
}

/// The pid of a driver means nothing elsewhere: neither verb claims to do what it cannot.
#[test]
fn stop_and_now_refuse_a_driver_of_another_machine() {
    let scratch = Scratch::new();
    let run = "\"$0\" run --delta 1h";
    let again = scratch.at("bin/again");
    let driver = scratch.again_command(&["converge", "--", "sh", "-c", run, &again]);
    let driver = scratch.start(driver);
    let waits = || {
        let status = scratch.status();
        status["drivers"][0]["timers"]
            .as_array()
            .is_some_and(|timers| !timers.is_empty())
            && status["drivers"][0]["run_pid"].is_null()
    };
    wait_until("the driver to wait", SHORT, waits);
    for (elsewhere, whose) in [
        (
            in_a_container as fn(&Scratch, &str) -> Command,
            "another pid namespace's",
        ),
        (on_another_machine, "another machine's"),
    ] {
        for verb in ["stop", "now", "stop --run"] {
            let said = answer(&mut elsewhere(&scratch, &format!("{again} {verb}")));
            assert_eq!(said.code, Some(1), "{verb}: {said:?}");
            assert!(said.err.contains(whose), "{verb}: {said:?}");
            assert!(!said.out.contains("stopped"), "{verb}: {said:?}");
        }
    }
    assert!(waits(), "the driver goes on");
    scratch.again_well(&["stop"]);
    let _: Ended = driver.wait();
    scratch.assert_nothing_left();
}
