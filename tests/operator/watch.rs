use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;

use again_test_support::{SHORT, Scratch, Started, stays, wait_until};

#[track_caller]
fn prints(watch: &Started, what: &str) {
    wait_until(&format!("{what:?} in {:?}", watch.out()), SHORT, || {
        watch.out().contains(what)
    });
}

#[test]
fn watched_status_is_printed_when_it_changes_until_a_signal_ends_it() {
    let mut scratch = Scratch::for_operator();
    let watch = scratch.start(scratch.again_command(&["status", "--watch"]));
    let lines = scratch.start(scratch.again_command(&["status", "--watch", "--json"]));
    prints(&watch, "nothing pending");
    prints(&lines, "}\n");
    scratch.shell("test -n \"$AGAIN_RUN\" || $AGAIN run --name later --delta 1h\n");
    prints(&watch, "timer 'later': in ");
    prints(&lines, "\"later\"");
    let before = watch.out();
    // Its time passes, and that is no change.
    stays("as it was", Duration::from_secs(4), || {
        watch.out() == before
    });
    scratch.again(&["stop"]).ok();
    wait_until("nothing pending again", SHORT, || {
        watch.out().matches("nothing pending").count() == 2
    });
    watch.signal(Signal::SIGTERM);
    lines.signal(Signal::SIGINT);
    let (watch, lines) = (watch.wait(), lines.wait());
    assert_eq!((watch.status(), watch.err.as_str()), (128 + 15, ""));
    assert_eq!((lines.status(), lines.err.as_str()), (128 + 2, ""));
    for line in lines.out.lines() {
        let report: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(report["schema"], 1);
    }
}

#[test]
fn watched_status_ends_when_nobody_reads_it() {
    let scratch = Scratch::for_operator();
    let mut command = scratch.again_command(&["status", "--watch"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("again");
    let mut out = child.stdout.take().expect("a pipe");
    assert!(out.read(&mut [0; 100]).expect("the first line") > 10);
    drop(out);
    assert!(child.wait().expect("its end").success());
}

#[test]
fn watched_status_is_drawn_on_a_terminal_that_is_left_as_it_was() {
    let mut scratch = Scratch::for_operator();
    let again = scratch.at("bin/again");
    let line = format!(
        "trap : INT; stty rows 24 cols 100; {again} status --watch; echo status=$?; stty -a"
    );
    let mut script = scratch.line(&["script", "--quiet", "--return", "--flush", "--command"]);
    script.args([&line, "/dev/null"]).stdin(Stdio::piped());
    script.env("SHELL", "/bin/sh").env("TERM", "xterm");
    let mut watch = scratch.start(script);
    prints(&watch, "\x1b[H\x1b[J");
    prints(&watch, "nothing pending");
    watch.types("typed\n");
    scratch.shell("test -n \"$AGAIN_RUN\" || $AGAIN run --name later --delta 1h\n");
    prints(&watch, "timer 'later': in ");
    scratch.again(&["stop"]).ok();
    watch.types("\x03");
    let ended = watch.wait();
    let (shown, after) = ended.out.split_once("status=130").expect("its status");
    assert!(!shown.contains("typed"), "{shown:?}");
    assert!(
        after.contains(" echo ") && !after.contains("-echo "),
        "{after}"
    );
}

mod privileged {
    use super::*;

    /// The first process of a container gets no signal that it does not handle.
    #[test]
    fn viewer_that_is_process_1_ends_with_the_status_of_its_signal() {
        let scratch = Scratch::for_operator();
        let (again, words) = (scratch.at("bin/again"), ["status", "--watch"]);
        let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let watch = scratch.line(&[&unshare[..], &[&again], &words].concat());
        let watch = scratch.start(watch);
        prints(&watch, "nothing pending");
        let children = format!("/proc/{0}/task/{0}/children", watch.pid());
        let child = std::fs::read_to_string(children).expect("its child");
        let child = child.trim().parse().expect("a pid");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGTERM).expect("sent");
        assert_eq!(watch.wait().status(), 128 + 15);
    }
}
