use std::fs;

use again_test_support::{SHORT, Scratch, wait_until};

/// Returns a record's text as a newer version would write it.
fn newer(text: &str) -> String {
    let newer = text.replacen("\"version\":1,", "\"version\":99,", 1);
    assert_ne!(newer, text);
    newer
}

#[test]
fn every_verb_leaves_a_newer_versions_record_alone_and_serves_the_others() {
    let scratch = Scratch::new();
    let request = |name| {
        [
            "run",
            "--delta",
            "1h",
            "--jitter",
            "0",
            "--name",
            name,
            "--",
            "/bin/true",
            name,
        ]
    };
    scratch.again_well(&request("theirs"));
    scratch.waiter("theirs").wait_until_asleep();
    let path = scratch.target().join("state.json");
    let ours = fs::read_to_string(&path).expect("a record");
    let theirs = newer(&ours);
    fs::write(&path, &theirs).expect("written");
    let waiter = scratch.only_waiter();
    for verb in [
        "resume", "status", "history", "log", "disable", "enable", "reset", "stop", "now",
    ] {
        scratch.again_well(&request("ours"));
        let said = scratch.again(&[verb]);
        // For `status`, 0 means that something is pending.
        let code = i32::from(verb != "status");
        assert_eq!(said.code, Some(code), "{verb}: {said:?}");
        let why = "a newer version of again wrote it (record version 99";
        let all = format!("{}{}", said.out, said.err);
        assert!(all.contains(why), "{verb}: {said:?}");
        let name = path.parent().and_then(|target| target.file_name());
        let name = name.expect("an id").to_string_lossy();
        assert!(all.contains(&*name), "{verb}: {said:?}");
        assert_eq!(fs::read_to_string(&path).expect("there"), theirs, "{verb}");
        assert!(waiter.alive(), "{verb}");
    }
    // The other target's timer was stopped once, and brought forward once.
    assert_eq!(scratch.told("stopped").len(), 1);
    wait_until("the other target's rerun", SHORT, || {
        scratch.told("started").len() == 1
    });
    let refused = scratch.again(&request("theirs"));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let remedy = "upgrade again on this machine";
    assert!(refused.err.contains(remedy), "{refused:?}");
    let beside = fs::read_dir(path.parent().expect("a target")).expect("there");
    let aside = beside.filter(|file| {
        let name = file.as_ref().expect("readable").file_name();
        name.to_string_lossy().contains("unreadable")
    });
    assert_eq!(aside.count(), 0, "nothing was set aside");
    fs::write(&path, ours).expect("written");
    scratch.again_well(&["stop"]);
    wait_until("everything to settle", SHORT, || {
        scratch.again(&["status"]).code == Some(3)
    });
    scratch.assert_nothing_left();
}

#[test]
fn a_waiter_that_is_due_waits_for_a_record_that_it_can_read() {
    let scratch = Scratch::new();
    scratch.again_well(&["run", "--delta", "3", "--jitter", "0", "--", "/bin/true"]);
    scratch.waiter("again").wait_until_asleep();
    let path = scratch.target().join("state.json");
    let ours = fs::read_to_string(&path).expect("a record");
    fs::write(&path, newer(&ours)).expect("written");
    wait_until("the waiter to see it", SHORT, || {
        let log = scratch.text("state/again.log");
        log.contains("a newer version of again wrote it")
    });
    assert!(scratch.told("started").is_empty());
    fs::write(&path, ours).expect("written");
    wait_until("the rerun", SHORT, || scratch.told("started").len() == 1);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}
