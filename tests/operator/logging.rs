use again_test_support::{Scratch, answer};

/// A run that asks for a rerun in a second, and goes on until its waiter waits for it.
pub fn write_manifest(scratch: &Scratch) {
    scratch.write_shell(
        "site.pp",
        "test -z \"$AGAIN_RUN\" || exit 0
$AGAIN run --delta 1 --name 'a b'
until grep -qs 'waits for' $HERE/journal $HERE/state/again.log; do sleep 0.02; done\n",
    );
}

/// Makes a request that is due after a second, and waits for its end, where neither journal nor syslog can be reached.
fn request_without_system_log(scratch: &Scratch) {
    write_manifest(scratch);
    let run = scratch.line(&["ruby", "bin/puppet", "apply", "site.pp"]);
    let ended = answer(&mut scratch.without_system_log(&run));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    scratch.wait_until_settled();
}

/// What every line has of the request: target, timer, chain, in the order in which they become known.
pub fn about(scratch: &Scratch) -> [(&'static str, String); 3] {
    let report = scratch.status();
    let target = &report["targets"][0];
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    [
        ("target", text(&target["id"])),
        ("timer", "a b".to_owned()),
        ("chain", text(&target["last"]["chain"])),
    ]
}

/// The request's own line first: the waiter may be quicker than the one that has started it.
pub fn in_order(mut lines: Vec<&str>) -> Vec<&str> {
    lines.sort_by_key(|line| !line.contains(STARTS[0]));
    lines
}

/// One line for each change of state, and none while it waits.
pub const STARTS: [&str; 4] = [
    "scheduled: puppet apply runs again",
    "waits for the run with pid ",
    "waits until 20",
    "starts the rerun",
];

/// Neither journal nor syslog: a file of the state directory that only its owner can read.
#[test]
fn waiter_logs_to_a_file_without_journal_and_syslog() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::for_operator();
    request_without_system_log(&scratch);
    let text = scratch.text("state/again.log");
    let lines = in_order(text.lines().collect());
    assert_eq!(lines.len(), STARTS.len(), "{text}");
    for (line, start) in lines.iter().zip(STARTS) {
        let (at, rest) = line.split_once(' ').expect("a time");
        assert!(at.starts_with("20") && at.ends_with('Z'), "{line}");
        assert!(rest.starts_with(start), "{line}");
        for (name, value) in about(&scratch) {
            assert!(line.contains(&format!(" {name}={value}")), "{line}");
        }
    }
    let meta = std::fs::metadata(scratch.path("state/again.log")).expect("there");
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
}

/// It does not grow without end: one older file is kept.
#[test]
fn again_rotates_its_log_file() {
    let scratch = Scratch::for_operator();
    std::fs::create_dir(scratch.path("state")).expect("created");
    let old = "old\n".repeat(300_000);
    scratch.write("state/again.log", &old);
    request_without_system_log(&scratch);
    let text = scratch.text("state/again.log");
    assert_eq!(
        in_order(text.lines().collect()).len(),
        STARTS.len(),
        "{text}"
    );
    assert!(
        scratch.text("state/again.log.1") == old,
        "the older file is kept as it was"
    );
}

#[test]
fn how_much_a_command_says() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -n \"$AGAIN_RUN\" || $AGAIN run\n");
    scratch.wait_until_settled();
    let err = |words: &[&str], level: &str| {
        let mut command = scratch.again_command(words);
        if !level.is_empty() {
            command.env("AGAIN_LOG", level);
        }
        String::from_utf8_lossy(&command.output().expect("started").stderr).into_owned()
    };
    assert_eq!(err(&["log"], ""), "");
    assert!(err(&["log", "-v"], "").starts_with("again: info: run 2 of chain "));
    assert!(err(&["log"], "info").starts_with("again: info: run 2 of chain "));
    assert_eq!(err(&["log", "-v"], "off"), "");
}

/// The level that a request is given is that of its waiter too.
#[test]
fn waiter_logs_at_the_level_of_its_request() {
    for (level, starts) in [("off", 0), ("warn", 0), ("info", 1)] {
        let scratch = Scratch::for_operator();
        let touched = scratch.at("touched");
        let mut request = scratch.again_command(&["run", "--", "/bin/touch", &touched]);
        request = scratch.without_system_log(&request);
        let said = answer(request.env("AGAIN_LOG", level));
        assert_eq!(said.code, Some(0), "{said:?}");
        again_test_support::wait_until("the rerun", again_test_support::SHORT, || {
            scratch.path("touched").exists()
        });
        let log = std::fs::read_to_string(scratch.path("state/again.log")).unwrap_or_default();
        assert_eq!(
            log.matches("starts the rerun").count(),
            starts,
            "{level}: {log}"
        );
    }
}
