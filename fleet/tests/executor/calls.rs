//! Programs of rules as real processes, called by a real `again-fleet call`.

use again_test_support::{SHORT, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use again_base::model::Span;
use again_fleet::executor::calls::{Call, Calls, EventInput};
use again_fleet::wire::event::{Change, Event};
use again_fleet::wire::lineage::Lineage;
use again_fleet::wire::name::Id;

/// Directory of a node with pending calls.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("a directory"));
        fs::write(place.path("again-fleet.toml"), "").expect("written");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Adds a call of a shell script, whose first argument is the directory.
    fn put(&self, rule: &str, n: u64, script: &str) {
        let directory = self.0.path().to_str().expect("plain");
        let command = ["/bin/sh", "-c", script, "sh", directory];
        self.put_call(rule, n, &command, 120);
    }

    fn put_call(&self, rule: &str, n: u64, command: &[&str], timeout: u64) {
        let event = Event {
            n,
            at: 1000 + n,
            resource: "Service[httpd]".to_owned(),
            change: Change::Started,
            property: Some("ensure".to_owned()),
            corrective: false,
            tags: vec!["service".to_owned()],
            within: Vec::new(),
            file: None,
            line: None,
            old: None,
            new: None,
            message: None,
        };
        let call = Call {
            rule: rule.to_owned(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            timeout: Span::from_secs(timeout),
            id: Id::from_bits(n.into()),
            event: EventInput {
                node: "web1.test".parse().expect("a certname"),
                run: Id::from_bits(7),
                environment: "production".to_owned(),
                event,
                origins: Lineage::default(),
            },
        };
        let calls = Calls::open(&self.path("state")).expect("opened");
        calls.put(&call).expect("put");
    }

    fn waiting(&self) -> usize {
        let listed = fs::read_dir(self.path("state/calls")).expect("listed");
        listed.count()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_again-fleet"));
        self.arguments(&mut command);
        command
    }

    fn arguments(&self, command: &mut Command) {
        command.args(["call", "--idle", "0"]);
        command.arg("--config").arg(self.path("again-fleet.toml"));
        command.arg("--state-dir").arg(self.path("state"));
        command.env("LEAK", "1").stdin(Stdio::null());
    }

    /// Runs `again-fleet call` until no call is pending; returns its log.
    fn work(&self) -> String {
        let log = text(&self.command().output().expect("started"));
        assert_eq!(self.waiting(), 0, "{log}");
        log
    }

    /// Starts `again-fleet call` beside the test.
    fn start(&self) -> Child {
        let child = self.command().stderr(Stdio::piped()).spawn();
        child.expect("started")
    }

    fn wait_for(&self, name: &str) -> String {
        wait_until(name, SHORT, || self.text(name).ends_with('\n'));
        self.text(name).trim().to_owned()
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Waits until the kernel has ended a killed process.
fn ends(pid: &str) {
    wait_until("its end", SHORT, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_none_or(|state| state.starts_with('Z'))
    });
}

#[test]
fn the_calls_of_a_rule_are_made_one_by_one_in_their_order() {
    let place = Place::new();
    let script = r#"cd "$1"; mkdir busy || echo twice >bad; cat >>heard; sleep 0.02; rmdir busy"#;
    for n in [5, 2, 9] {
        place.put("a 'rule'/..", n, script);
    }
    let log = place.work();
    assert_eq!(place.text("bad"), "");
    let heard = place.text("heard");
    let heard: Vec<serde_json::Value> = heard
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let numbers: Vec<_> = heard.iter().map(|one| one["event"]["n"].as_u64()).collect();
    assert_eq!(numbers, [Some(5), Some(2), Some(9)]);
    let first = &heard[0];
    assert_eq!(first["version"], 1);
    assert_eq!(first["id"], "00000000000000000000000000000005");
    assert_eq!(first["rule"], "a 'rule'/..");
    assert_eq!(first["node"], "web1.test");
    assert_eq!(first["run"], "00000000000000000000000000000007");
    assert_eq!(first["environment"], "production");
    assert_eq!(first["event"]["resource"], "Service[httpd]");
    assert_eq!(first["event"]["change"], "started");
    assert!(first["origins"].is_array());
    let said = "again-fleet: called: 'a 'rule'/..', web1.test, Service[httpd] started: /bin/sh ended with exit status: 0 after ";
    assert_eq!(log.matches(said).count(), 3, "{log}");
}

#[test]
fn rules_go_side_by_side() {
    let place = Place::new();
    // Each script ends when the other has begun.
    let script = |own: &str, other: &str| {
        format!(r#"cd "$1"; : >{own}; until [ -e {other} ]; do sleep 0.01; done; echo {own} >>met"#)
    };
    place.put("a", 1, &script("a", "b"));
    place.put("b", 2, &script("b", "a"));
    place.work();
    assert_eq!(place.text("met").lines().count(), 2);
}

#[test]
fn a_program_that_takes_too_long_is_killed_with_all_that_it_started() {
    let place = Place::new();
    let script = r#"cd "$1"; (trap '' TERM; echo $(sh -c 'echo $PPID') >child; exec sleep 1000) & echo $$ >parent; sleep 1000"#;
    let directory = place.path("").to_str().expect("plain").to_owned();
    place.put_call("a", 1, &["/bin/sh", "-c", script, "sh", &directory], 1);
    place.put("a", 2, r#"echo next >"$1/next""#);
    let log = place.work();
    for name in ["parent", "child"] {
        ends(&place.wait_for(name));
    }
    assert!(log.contains("failed: 'a', web1.test, Service[httpd] started: /bin/sh had not ended within 1s and was killed"), "{log}");
    assert_eq!(place.text("next"), "next\n");
}

#[test]
fn what_a_program_leaves_behind_holds_nobody_up() {
    let place = Place::new();
    let script = r#"cd "$1"; sleep 1000 & echo $! >child; exit 3"#;
    place.put("a", 1, script);
    let log = place.work();
    assert!(
        log.contains("failed: ") && log.contains("ended with exit status: 3"),
        "{log}"
    );
    ends(&place.wait_for("child"));
}

#[test]
fn killed_in_between_it_calls_again_with_the_same_id() {
    let place = Place::new();
    let script =
        r#"cd "$1"; cat >>heard; [ -e once ] && exit; : >once; echo $$ >pid; exec sleep 1000"#;
    place.put("a", 1, script);
    place.put("a", 2, "exit 0");
    let mut child = place.start();
    let pid = place.wait_for("pid");
    // Only one process works at a time.
    let second = place.command().output().expect("started");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        !second.status.success() && said.contains("another 'again-fleet call' is at work"),
        "{said}"
    );
    child.kill().expect("killed");
    child.wait().expect("a child");
    assert_eq!(place.waiting(), 2);
    let program = rustix::process::Pid::from_raw(pid.parse().expect("a pid")).expect("a pid");
    rustix::process::kill_process(program, rustix::process::Signal::KILL).expect("killed");
    place.work();
    let heard = place.text("heard");
    let heard: Vec<&str> = heard.lines().collect();
    assert_eq!(heard.len(), 2);
    assert_eq!(heard[0], heard[1]);
}

#[test]
fn what_cannot_be_read_is_set_aside_and_said() {
    let place = Place::new();
    place.put("a", 1, r#"echo called >>"$1/called""#);
    let calls = place.path("state/calls");
    fs::write(calls.join("0"), "nonsense").expect("written");
    let name = "0000000000000000-0123456789abcdef-00000000000000000000000000000003";
    fs::write(calls.join(name), "{}").expect("written");
    std::os::unix::fs::symlink("/etc/passwd", calls.join("1")).expect("linked");
    let log = place.work();
    assert_eq!(place.text("called"), "called\n");
    assert_eq!(log.matches("not called: ").count(), 3, "{log}");
    assert!(
        log.contains(&format!("calls/{name} cannot be read (")),
        "{log}"
    );
    assert!(
        log.contains("and is now ") && log.contains("executor/call.unreadable"),
        "{log}"
    );
    assert!(fs::symlink_metadata(place.path("state/executor/call.unreadable")).is_ok());
}

#[test]
fn what_a_program_writes_is_logged_up_to_a_bound() {
    let place = Place::new();
    place.put(
        "a",
        1,
        r"printf 'one\n'; printf 'two\033[2J\n' >&2; printf 'no end'",
    );
    let log = place.work();
    let about = "again-fleet: 'a', web1.test, Service[httpd] started: ";
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(
        lines[..3],
        [
            format!("{about}one"),
            format!("{about}two [2J"),
            format!("{about}no end")
        ]
    );
    assert_eq!(lines.len(), 4, "{log}");
    place.put("a", 2, "i=0; while [ $i -lt 1100 ]; do echo $i; i=$((i+1)); done; head -c 5000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero");
    let log = place.work();
    assert_eq!(log.lines().count(), 1002);
    assert!(log.contains("more than 1000 lines are not logged"));
    place.put("a", 3, "head -c 300000 /dev/zero | tr '\\0' x");
    let log = place.work();
    assert_eq!(
        log.lines().next().expect("a line").len(),
        about.len() + 1000
    );
}

#[test]
fn a_program_that_is_missing_is_said_and_stops_nothing() {
    let place = Place::new();
    place.put_call("a", 1, &["/nonexistent/tell", "x"], 60);
    place.put("a", 2, r#"echo called >"$1/called""#);
    let log = place.work();
    assert!(log.contains("failed: 'a', web1.test, Service[httpd] started: /nonexistent/tell cannot be started: No such file"), "{log}");
    assert_eq!(place.text("called"), "called\n");
}

#[test]
fn a_program_inherits_nothing() {
    let place = Place::new();
    // A shell sets variables of its own.
    let script = place.path("program");
    fs::write(&script, "#!/bin/sh\ncat /proc/self/environ | tr '\\0' '\\n' | sort\npwd\nls /proc/self/fd | tr '\\n' ' '\n").expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    place.put_call("a", 1, &[script.to_str().expect("plain")], 60);
    let mut command = Command::new("/bin/bash");
    command.args(["-c", r#"exec 7</etc/passwd; exec "$0" "$@""#]);
    command.arg(env!("CARGO_BIN_EXE_again-fleet"));
    place.arguments(&mut command);
    let log = text(&command.output().expect("started"));
    let mut said: Vec<&str> = log
        .lines()
        .filter_map(|line| Some(line.split_once("started: ")?.1))
        .collect();
    said.pop();
    let home = again_base::sys::user::home(again_base::sys::user::effective()).expect("a home");
    let home = format!("HOME={}", home.display());
    let path =
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/puppetlabs/bin";
    // The last descriptor is the directory that ls itself reads.
    let said: Vec<&str> = said
        .into_iter()
        .filter(|line| !line.starts_with("PWD="))
        .collect();
    assert_eq!(
        said,
        [&home, "LANG=C.UTF-8", path, "/", "0 1 2 3 "],
        "{log}"
    );
    assert_eq!(place.waiting(), 0);
}
