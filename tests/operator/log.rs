use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use again_test_support::{Process, SHORT, Scratch, stays, wait_for};

#[test]
fn shows_the_rerun_that_is_meant() {
    let mut scratch = Scratch::for_operator();
    let said = scratch.again(&["log"]);
    assert_eq!(said.status(), 1);
    assert!(
        said.err
            .starts_with("again: error: there is no output of any rerun (logs in "),
        "{said:?}"
    );
    scratch.shell("echo \"this is run ${AGAIN_RUN:-1}\"\ntest \"$AGAIN_RUN\" = 3 || $AGAIN run\n");
    wait_for("the third run", SHORT, || {
        scratch.status()["targets"][0]["last"]["run"]
            .as_u64()
            .filter(|n| *n == 3)
    });
    scratch.wait_until_settled();
    assert_eq!(scratch.again(&["log"]).ok(), "this is run 3\n");
    let second = scratch.again(&["log", "2"]).ok();
    assert!(second.starts_with("this is run 2\n"), "{second}");
    let chain = scratch.status()["targets"][0]["last"]["chain"]
        .as_str()
        .expect("a chain")
        .to_owned();
    assert_eq!(scratch.again(&["log", &chain]).ok(), "this is run 3\n");
    assert_eq!(scratch.again(&["log", &format!("{chain}-2")]).ok(), second);
    let said = scratch.again(&["log", "9"]);
    assert_eq!(said.status(), 1);
    assert!(
        said.err.contains(&format!(
            "there is no output of run 9 of the newest chain; the newest is run 3 of chain {chain}"
        )),
        "{said:?}"
    );
    // An ended rerun is not waited for.
    assert_eq!(scratch.again(&["log", "-f"]).ok(), "this is run 3\n");
}

#[test]
fn follows_until_the_rerun_has_ended_without_looking_again_and_again() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -n \"$AGAIN_RUN\" || { $AGAIN run; exit; }\necho one\nuntil test -e $HERE/go; do sleep 0.05; done\necho two\nuntil test -e $HERE/end; do sleep 0.05; done\n");
    wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["running"]
            .as_object()
            .map(|_| ())
    });
    let mut reader = scratch
        .again_command(&["log", "-f"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("again");
    let mut lines = BufReader::new(reader.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().map(|line| line.expect("text"));
    assert_eq!(line().as_deref(), Some("one"));
    let switches = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", reader.id())).expect("/proc");
        let line = status
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.map(str::to_owned)
    };
    let process = Process::now(reader.id().cast_signed()).expect("alive");
    process.wait_until_asleep();
    let (before, while_it_waits) = (switches(), std::time::Duration::from_millis(1500));
    stays("it sleeps", while_it_waits, || switches() == before);
    scratch.write("go", "");
    assert_eq!(line().as_deref(), Some("two"));
    scratch.write("end", "");
    assert_eq!(line(), None);
    assert!(reader.wait().expect("waited").success());
}

#[test]
fn a_reader_that_is_interrupted_leaves_the_rerun_alone() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -n \"$AGAIN_RUN\" || { $AGAIN run; exit; }\necho one\nuntil test -e $HERE/go; do sleep 0.05; done\n");
    let pid = wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["running"]["pid"].as_i64()
    });
    let mut reader = scratch
        .again_command(&["log", "-f"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("again");
    let mut first = String::new();
    BufReader::new(reader.stdout.as_mut().expect("a pipe"))
        .read_line(&mut first)
        .expect("read");
    assert_eq!(first, "one\n");
    scratch
        .run("kill", &["-INT", &reader.id().to_string()])
        .ok();
    let output = reader.wait_with_output().expect("waited");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("continues (pid {pid})")), "{said}");
    assert_eq!(output.status.signal(), Some(2), "{said}");
    assert_eq!(scratch.status()["targets"][0]["running"]["pid"], pid);
    scratch.write("go", "");
    scratch.wait_until_settled();
}

#[test]
fn what_may_not_be_read_is_an_error_that_names_it() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("test -n \"$AGAIN_RUN\" || $AGAIN run\n");
    wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["last"]
            .as_object()
            .map(|_| ())
    });
    assert_eq!(
        scratch.run("id", &["-u"]).out.trim(),
        "0",
        "to become another user takes root"
    );
    // A test's own directory is not for others to enter, nor may be the repository's.
    scratch.run("chmod", &["0755", "."]).ok();
    scratch
        .run("sh", &["-c", "cp \"$AGAIN\" again && chmod 0755 again"])
        .ok();
    let words = "./again log; echo status $?";
    let said = scratch.run(
        "setpriv",
        &[
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            words,
        ],
    );
    assert!(
        said.err
            .starts_with("again: error: cannot read the output "),
        "{said:?}"
    );
    assert_eq!(said.out, "status 1\n");
}
