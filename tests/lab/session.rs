//! A person at a terminal, who hangs up.

use std::io::Write;
use std::process::{Child, Stdio};

use crate::{asks_once, asks_once_with, delta, nothing_more_happens};
use again_test_support::Lab;

/// A login session on a terminal of its own, as sshd would make it.
struct Session {
    script: Child,
}

impl Session {
    /// Logs in as root, and types a command.
    fn start(lab: &Lab, command: &str) -> Self {
        Self::start_as(lab, "root", command)
    }

    fn start_as(lab: &Lab, user: &str, command: &str) -> Self {
        let login = format!("login -f {user}");
        let typescript = "/var/log/lab/typescript";
        let mut script = lab.spawn(
            &[
                "script",
                "--quiet",
                "--flush",
                "--command",
                &login,
                typescript,
            ],
            Stdio::piped(),
        );
        let typed = script.stdin.as_mut().unwrap();
        // `script` would end with its input, so the pipe stays open until the line goes dead.
        writeln!(typed, "{command}").unwrap();
        Session { script }
    }

    /// The line goes dead: nobody reads the terminal any more.
    fn hang_up(mut self, lab: &Lab) {
        lab.sh("pkill -KILL -x script");
        let _ = self.script.wait();
        lab.wait_until("the session has ended", 20, || {
            lab.sh("pgrep -x login || true").is_empty().then_some(())
        });
    }
}

fn kill_user_processes(lab: &Lab) {
    // root is exempt unless somebody else is named.
    lab.write(
        "/etc/systemd/logind.conf.d/lab.conf",
        "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=nobody\n",
    );
    lab.sh("systemctl restart systemd-logind");
}

fn the_rerun_outlives_the_session(lab: &Lab) {
    lab.manifest(&asks_once(&delta(6)));
    let session = Session::start(lab, "puppet apply /root/site.pp");
    let timer = lab.pending(30);
    let first = lab.wait_until("the run has ended", 20, || {
        lab.runs().into_iter().find(|run| run.ended.is_some())
    });
    assert!(
        first.group.contains("/session-"),
        "not in a login session: {}",
        first.group
    );
    assert_ne!(first.tty, 0, "the run has no terminal");
    session.hang_up(lab);
    assert!(
        lab.uptime() < first.ended.unwrap() + 5.5,
        "too slow to hang up before it was due"
    );

    let waiter = timer["waiter"]["pid"].as_u64().unwrap();
    assert!(
        lab.group_of(waiter).is_some(),
        "the waiter went with the session"
    );
    let reruns = lab.wait_for_reruns(1, 30);
    assert_eq!(reruns[0].pid, waiter);
    assert_eq!(reruns[0].tty, 0, "the rerun has a terminal");
    assert!(
        reruns[0].started >= first.ended.unwrap() + 6.0 - 0.02,
        "early"
    );
    assert_eq!(reruns[0].var("HOME"), Some("/root"));
    nothing_more_happens(lab);
}

#[test]
fn the_rerun_outlives_a_login_session_that_hangs_up() {
    the_rerun_outlives_the_session(&Lab::boot());
}

#[test]
fn the_rerun_outlives_a_login_session_with_kill_user_processes() {
    let lab = Lab::boot();
    kill_user_processes(&lab);
    the_rerun_outlives_the_session(&lab);
}

/// The hang-up ends the run itself, which has asked already.
#[test]
fn the_rerun_outlives_a_hang_up_in_the_middle_of_the_run() {
    let lab = Lab::boot();
    kill_user_processes(&lab);
    lab.manifest(&asks_once_with(
        "exec { '/bin/sleep 60': require => Exec['again-delta-later'], unless => '/usr/bin/test -e /var/lib/cut' }",
        &delta(3),
    ));
    let session = Session::start(&lab, "puppet apply /root/site.pp");
    lab.pending(30);
    lab.sh("touch /var/lib/cut");
    session.hang_up(&lab);
    let ended = lab.uptime();
    let reruns = lab.wait_for_reruns(1, 40);
    assert!(
        reruns[0].started < ended + 15.0,
        "the rerun waited for something else"
    );
    nothing_more_happens(&lab);
}

/// Only root gets a scope of the system's. Who does not hears of it while there is somebody to hear it.
#[test]
fn an_ordinary_user_is_told_that_the_waiter_stays_in_the_session() {
    let lab = Lab::boot();
    kill_user_processes(&lab);
    lab.write(
        "/home/person/site.pp",
        "exec { '/usr/local/bin/again run --delta 6 --jitter 0': logoutput => true, unless => '/usr/bin/test -n \"$AGAIN_RUN\"' }",
    );
    let session = Session::start_as(&lab, "person", "puppet apply --color=false site.pp");
    let line = lab.wait_until("the request is answered", 40, || {
        let typed = lab.read("/var/log/lab/typescript");
        typed
            .lines()
            .find(|l| l.contains("again: "))
            .map(str::to_owned)
    });
    let said_so = line.contains("scope");
    session.hang_up(&lab);
    // Either it got away, or it said beforehand that it might not.
    if !said_so {
        let what = format!("a rerun, or a word before it is lost: {line}");
        lab.wait_until(&what, 60, || (!lab.reruns().is_empty()).then_some(()));
    }
}

/// The other side: what stays in the session goes with it.
#[test]
fn without_a_scope_kill_user_processes_takes_the_waiter_along() {
    let lab = Lab::boot();
    kill_user_processes(&lab);
    lab.manifest(&asks_once(&delta(6)));
    let session = Session::start(&lab, "AGAIN_SCOPE=never puppet apply /root/site.pp");
    let waiter = lab.pending(30)["waiter"]["pid"].as_u64().unwrap();
    lab.wait_until("the run has ended", 20, || {
        lab.runs()
            .iter()
            .any(|run| run.ended.is_some())
            .then_some(())
    });
    session.hang_up(&lab);
    lab.wait_until("the waiter has gone with the session", 5, || {
        lab.group_of(waiter).is_none().then_some(())
    });
    let timers = lab.timers();
    assert!(
        timers.len() == 1 && timers[0]["state"] == "dead",
        "the loss is not shown: {timers:#?}"
    );
}
