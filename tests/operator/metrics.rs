use std::io::Write;
use std::process::{Command, Stdio};

use again_test_support::{SHORT, Scratch, stable, wait_for};

/// That the real promtool has nothing against it, style included.
#[track_caller]
fn check(text: &str) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, of the Debian package prometheus");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(text.as_bytes())
        .expect("written");
    let output = child.wait_with_output().expect("waited");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
}

fn lines(scratch: &Scratch) -> Vec<String> {
    let text = scratch.again(&["metrics"]).ok();
    check(&text);
    stable(&text, scratch).lines().map(str::to_owned).collect()
}

#[test]
fn nothing_yet_is_a_good_answer() {
    let scratch = Scratch::for_operator();
    let lines = lines(&scratch);
    for line in [
        "again_disabled 0",
        "again_reruns_total 0",
        "again_refusals_total{reason=\"cap\"} 0",
    ] {
        assert!(lines.iter().any(|l| l == line), "{line}: {lines:#?}");
    }
}

#[test]
fn what_is_pending_and_what_has_been() {
    let mut scratch = Scratch::for_operator();
    scratch.shell("$AGAIN run --max-runs 1 --on-cap skip\n");
    wait_for("the rerun", SHORT, || {
        scratch.status()["targets"][0]["last"]
            .as_object()
            .map(|_| ())
    });
    scratch.wait_until_settled();
    scratch.shell("$AGAIN run --delta 1h --name later\n");
    scratch.again(&["disable", "a \"quoted\\ reason"]).ok();
    scratch.shell("$AGAIN run\n");
    let user = scratch.run("id", &["-un"]).ok();
    let of = format!("{{target=\"ID\",kind=\"apply\",user=\"{}\"", user.trim());
    let lines = lines(&scratch);
    for line in [
        "again_disabled 1".to_owned(),
        format!("again_timers_pending{of}}} 1"),
        format!("again_timers_dead{of}}} 0"),
        format!("again_running{of}}} 0"),
        format!("again_cap_reruns{of}}} 1"),
        format!("again_last_rerun_outcome{of},outcome=\"unknown\"}} 1"),
        format!("again_last_rerun_outcome{of},outcome=\"failed\"}} 0"),
        "again_requests_total 2".to_owned(),
        "again_reruns_total 1".to_owned(),
        "again_reruns_ended_total{outcome=\"unknown\"} 1".to_owned(),
        "again_refusals_total{reason=\"cap\"} 1".to_owned(),
        "again_refusals_total{reason=\"disabled\"} 1".to_owned(),
    ] {
        assert!(lines.contains(&line), "{line}: {lines:#?}");
    }
    let age = lines
        .iter()
        .find(|l| l.starts_with("again_oldest_timer_age_seconds"))
        .expect("an age");
    let age: f64 = age
        .rsplit(' ')
        .next()
        .expect("a value")
        .parse()
        .expect("a number");
    assert!((0.0..60.0).contains(&age));
}

/// Of what a driver runs, its first run is no rerun, and all that it runs again ends in some way that is counted.
#[test]
fn what_a_driver_runs_again_is_counted_like_any_other() {
    let scratch = Scratch::for_operator();
    scratch.write("run", "test -n \"$AGAIN_RUN\" || $AGAIN run\n");
    assert_eq!(scratch.again(&["converge", "--", "sh", "run"]).status(), 0);
    scratch.write(
        "fails",
        "test -n \"$AGAIN_RUN\" && kill -9 $$; $AGAIN run\n",
    );
    assert_eq!(
        scratch.again(&["converge", "--", "sh", "fails"]).status(),
        137
    );
    let lines = lines(&scratch);
    for line in [
        "again_reruns_total 2",
        "again_reruns_ended_total{outcome=\"succeeded\"} 1",
        "again_reruns_ended_total{outcome=\"killed\"} 1",
        "again_reruns_ended_total{outcome=\"skipped\"} 0",
        "again_reruns_ended_total{outcome=\"unknown\"} 0",
    ] {
        assert!(lines.iter().any(|l| l == line), "{line}: {lines:#?}");
    }
}
