use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::rig::{SHORT, wait_until, write_program};
use crate::stage::{Answer, Past, Stage, answer, assert_line, start};

/// `again WORDS -- ruby … puppet OTHERS`.
fn named(stage: &Stage, words: &[&str], others: &[&str]) -> Answer {
    let script = stage.at("bin/puppet");
    let puppet = ["--", "ruby", "--disable-gems", &script];
    stage.again(&[words, &puppet, others].concat())
}

#[track_caller]
fn schedule(stage: &Stage, words: &[&str], others: &[&str]) -> String {
    let done = named(stage, &[&["run"], words].concat(), others);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    done.out
}

/// The words behind the script.
fn options(run: &Past) -> Vec<String> {
    let line = String::from_utf8(run.raw("cmdline")).expect("UTF-8");
    let words = line.trim_end_matches('\0').split('\0');
    let behind = words.skip_while(|word| !word.ends_with("/puppet")).skip(1);
    behind.map(str::to_owned).collect()
}

fn only_target(stage: &Stage) -> Value {
    let status = stage.status();
    assert_eq!(
        status["targets"].as_array().map(Vec::len),
        Some(1),
        "{status:#}"
    );
    status["targets"][0].clone()
}

/// Lock, disabled file and summary where a test can write them.
fn with_files(stage: &Stage, more: &str) {
    fs::create_dir(stage.path("puppet")).expect("a directory");
    let path = |name: &str| format!("\"{}\"", stage.at(&format!("puppet/{name}")));
    stage.settings(&format!(
        "agent_catalog_run_lockfile = {}\nagent_disabled_lockfile = {}\nlastrunfile = {}\n{more}",
        path("lock"),
        path("disabled"),
        path("summary")
    ));
}

/// A run of the agent that holds its lock until the test lets it go.
fn holder(stage: &Stage) -> crate::stage::Run {
    let lock = stage.at("puppet/lock");
    let manifest =
        format!("File.binwrite('{lock}', Process.pid.to_s); hold('go'); File.delete('{lock}')");
    let run = start(&mut stage.agent("other", &manifest));
    wait_until("the lock", SHORT, || stage.path("puppet/lock").exists());
    run
}

/// What Puppet writes of a run that changed two resources.
const SUMMARY: &str = "---\\nversion:\\n  config: 1\\nresources:\\n  changed: 2\\n  failed: 0\\ntime:\\n  catalog_application: 0.1\\n  \
    last_run: #{Time.now.to_i}\\n";

/// It runs into no "already in progress": once the other run has let go of the lock it runs, once, and what it did is known.
#[test]
fn an_agent_waits_for_the_lock_and_leaves_a_summary() {
    let stage = Stage::new();
    with_files(&stage, "");
    let other = holder(&stage);
    let summary = stage.at("puppet/summary");
    stage.write(
        "work/named.pp",
        &format!("File.write('{summary}', \"{SUMMARY}\")"),
    );
    let words = [
        "agent",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
        "--certname",
        "named",
    ];
    let said = schedule(&stage, &[], &words);
    println!("{said}");
    assert_eq!(assert_line(&said), "scheduled");
    assert!(
        said.contains("puppet agent runs 0s from now") && said.contains("run 1 of chain"),
        "{said}"
    );
    stage.wait_for_state("again", "due");
    assert_eq!(only_target(&stage)["kind"], "agent");
    let explained = named(&stage, &["explain"], &words).out;
    let lock = format!("held by pid {} (", other.process.pid);
    assert!(explained.contains(&lock), "{explained}");
    assert!(
        explained.contains("  the command as it was named\n"),
        "{explained}"
    );
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(stage.runs("named").is_empty(), "while the lock is held");
    stage.release("go");
    other.wait();
    let runs = stage.wait_for_runs("named", 1);
    stage.wait_until_settled();
    assert_eq!(options(&runs[0]), words);
    let target = only_target(&stage);
    assert_eq!(
        (&target["last"]["outcome"], &target["last"]["run"]),
        (&"changed".into(), &1.into()),
        "{target:#}"
    );
    assert!(
        stage.history("ended")[0]
            .1
            .starts_with("2 resources changed, by "),
        "{:?}",
        stage.history("ended")
    );
    stage.assert_nothing_left();
}

/// A run of the agent that begins when the named one is due does its job.
#[test]
fn an_agent_run_that_began_later_satisfies_it() {
    let stage = Stage::new();
    with_files(&stage, "");
    stage.write("puppet/disabled", "{\"disabled_message\":\"why\"}");
    stage.write("work/named.pp", "");
    schedule(&stage, &[], &["agent", "--onetime", "--certname", "named"]);
    let timer = stage.wait_for_state("again", "held");
    assert!(
        timer["reason"]
            .as_str()
            .is_some_and(|why| why.contains("why")),
        "{timer:#}"
    );
    let other = holder(&stage);
    wait_until("it to be satisfied", SHORT, || {
        stage.history("satisfied").len() == 1
    });
    stage.release("go");
    other.wait();
    stage.wait_until_settled();
    assert!(stage.runs("named").is_empty());
    stage.assert_nothing_left();
}

/// `puppet agent --disable` holds it, and it runs once the agent is enabled; what enables the agent is not held.
#[test]
fn a_disabled_agent_holds_it_and_not_what_enables_it() {
    let stage = Stage::new();
    with_files(&stage, "");
    stage.write("puppet/disabled", "{}");
    stage.write("work/named.pp", "");
    schedule(&stage, &[], &["agent", "-t", "--certname", "named"]);
    stage.wait_for_state("again", "held");
    let disabled = stage.at("puppet/disabled");
    stage.write("work/enabler.pp", &format!("File.delete('{disabled}')"));
    schedule(
        &stage,
        &["--name", "other"],
        &["agent", "--enable", "--certname", "enabler"],
    );
    let enabler = stage.wait_for_runs("enabler", 1);
    assert_eq!(
        options(&enabler[0]),
        ["agent", "--enable", "--certname", "enabler"]
    );
    let runs = stage.wait_for_runs("named", 1);
    assert_eq!(options(&runs[0]), ["agent", "-t", "--certname", "named"]);
    stage.wait_until_settled();
    stage.assert_nothing_left();
}

/// What would start a daemon becomes one prompt run, and `again explain` says so.
#[test]
fn a_daemon_becomes_one_run() {
    let stage = Stage::new();
    stage.write("work/named.pp", "");
    let words = ["agent", "--daemonize", "--certname", "named"];
    let explained = named(&stage, &["explain"], &words).out;
    for line in [
        "  taken away --daemonize: ",
        "  added --onetime: one run, where this command line starts a daemon",
        "  added --no-daemonize: ",
        "  added --no-splay: ",
        "run 1\n",
    ] {
        assert!(explained.contains(line), "{line}: {explained}");
    }
    assert!(!stage.path("state").exists(), "it changed something");
    schedule(&stage, &[], &words);
    let runs = stage.wait_for_runs("named", 1);
    let one = [
        "agent",
        "--certname",
        "named",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
    ];
    assert_eq!(options(&runs[0]), one);
    assert_eq!(runs[0].variable("AGAIN_RUN").as_deref(), Some("1"));
    stage.wait_until_settled();
    stage.assert_nothing_left();
}

/// `--noop` on the command line or in the configuration that it reads: it changes nothing, so there is nothing to do.
#[test]
fn a_noop_run_is_not_started() {
    let stage = Stage::new();
    stage.write("work/puppet.conf", "[main]\nnoop = true\n");
    let conf = stage.at("work");
    for (words, said) in [
        (&["apply", "--noop", "named.pp"][..], "(--noop, "),
        (&["agent", "-t", "--noop"], "(--noop, "),
        (
            &["agent", "-t", "--confdir", &conf],
            "(noop = true in puppet.conf, ",
        ),
    ] {
        let done = named(&stage, &["run"], words);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
        assert_eq!(assert_line(&done.out), "nothing to do");
        assert!(done.out.contains(said), "{done:?}");
        assert!(stage.timers().is_empty());
    }
    // In a noop run, a command that is none does not get through either.
    stage.write("work/site.pp", "ask('run', '--', '/bin/true')");
    start(&mut stage.puppet_command(&["apply", "--noop", "site.pp"].map(Into::into))).wait();
    assert_eq!(
        assert_line(&stage.runs("site")[0].asked()[0].output),
        "nothing to do"
    );
    stage.assert_nothing_left();
}

#[test]
fn an_apply_needs_its_manifest_and_its_directory() {
    let stage = Stage::new();
    stage.write("work/named.pp", "");
    let said = schedule(&stage, &["--delta", "1"], &["apply", "named.pp"]);
    assert!(said.contains("puppet apply runs 1s from now"), "{said}");
    assert_eq!(only_target(&stage)["kind"], "apply");
    fs::remove_file(stage.path("work/named.pp")).expect("removed");
    wait_until("it to fail", SHORT, || stage.history("failed").len() == 1);
    let manifest = format!("the manifest {} is gone", stage.at("work/named.pp"));
    assert_eq!(stage.history("failed")[0].1, manifest);
    // Another directory is another target.
    let mut elsewhere = stage.command(stage.path("bin/again"));
    elsewhere.args([
        "run",
        "--delta",
        "1h",
        "--",
        "ruby",
        "--disable-gems",
        &stage.at("bin/puppet"),
    ]);
    elsewhere
        .args(["apply", "named.pp"])
        .current_dir(stage.path("out"));
    assert_eq!(answer(&mut elsewhere).code, Some(0));
    schedule(&stage, &["--delta", "1h"], &["apply", "named.pp"]);
    assert_eq!(stage.timers().len(), 2);
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}

/// A file is opened again, a pipe cannot be read twice.
#[test]
fn a_manifest_on_standard_input() {
    let stage = Stage::new();
    let manifest = stage.write("manifest", "note('heard', 'it')");
    let request = || {
        let mut command = stage.command(stage.path("bin/again"));
        command.args(["run", "--jitter", "0", "--", "ruby", "--disable-gems"]);
        command.args([&stage.at("bin/puppet"), "apply"]);
        command
    };
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let done = answer(request().stdin(reader));
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    assert_eq!(assert_line(&done.out), "refused");
    assert!(
        done.out.contains("standard input") && done.out.contains("pipe:["),
        "{done:?}"
    );
    let file = fs::File::open(&manifest).expect("opened");
    let done = answer(request().stdin(Stdio::from(file)));
    assert_eq!(assert_line(&done.out), "scheduled", "{done:?}");
    assert_eq!(stage.wait_for_runs("stdin", 1)[0].text("heard"), "it");
    stage.wait_until_settled();
    stage.assert_nothing_left();
}

/// By its path, through PATH, and through a wrapper of that name: of Puppet's all the same. A script has the identity of the
/// run that it becomes, so that the two share timers and cap.
#[test]
fn a_script_and_a_wrapper_called_puppet() {
    let stage = Stage::new();
    let stand_in = fs::read_to_string(stage.path("bin/puppet")).expect("the stand-in");
    write_program(
        stage.path("work/puppet"),
        &format!("#!/usr/bin/ruby --disable-gems\n{stand_in}"),
    );
    let script = stage.at("work/puppet");
    for (name, manifest) in [
        ("x", "ask('run', '--delta', '1h', '--name', 'of-the-run')"),
        ("y", ""),
    ] {
        fs::create_dir_all(stage.path("runs")).expect("there");
        stage.write(&format!("work/{name}.pp"), manifest);
    }
    let words = [
        "agent",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
        "--certname",
        "x",
    ];
    let mut run = stage.command(&script);
    run.args(words);
    stage.with_output(&mut run);
    start(&mut run).wait();
    stage.wait_for_state("of-the-run", "waiting");
    let path = format!("{}:/usr/bin:/bin", stage.at("work"));
    for (n, program) in [script.as_str(), "puppet"].iter().enumerate() {
        let mut request = stage.command(stage.path("bin/again"));
        request.env("PATH", &path).args([
            "run",
            "--delta",
            "1h",
            "--name",
            &format!("n{n}"),
            "--",
            program,
        ]);
        let done = answer(request.args(&words[..2]).args(&words[4..]));
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    // Where nothing is said of daemonizing, splaying is not by default: --no-splay is not added, so one more is needed.
    let targets = stage.status()["targets"].as_array().expect("targets").len();
    assert_eq!(targets, 2, "{:#}", stage.status());
    let mut request = stage.command(stage.path("bin/again"));
    request
        .env("PATH", &path)
        .args(["run", "--delta", "1h", "--name", "same", "--", "puppet"]);
    assert_eq!(answer(request.args(words)).code, Some(0));
    let status = stage.status();
    let names = |target: &Value| -> Vec<String> {
        let timers = target["timers"].as_array().expect("timers").iter();
        timers
            .map(|timer| timer["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    let mut all: Vec<_> = status["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .map(names)
        .collect();
    all.sort();
    assert_eq!(
        all,
        [vec!["n0", "n1"], vec!["of-the-run", "same"]],
        "{status:#}"
    );
    stage.again_well(&["stop"]);
    // A wrapper.
    fs::create_dir(stage.path("wrap")).expect("a directory");
    let wrapper = stage.path("wrap/puppet");
    write_program(
        &wrapper,
        &format!(
            "#!/bin/sh\nexec ruby --disable-gems {} \"$@\"\n",
            stage.at("bin/puppet")
        ),
    );
    let wrapped = stage.at("wrap/puppet");
    let said = stage.again_well(&[
        "run",
        "--jitter",
        "0",
        "--",
        &wrapped,
        "agent",
        "--certname",
        "y",
    ]);
    assert!(said.contains("puppet agent runs "), "{said}");
    let runs = stage.wait_for_runs("y", 1);
    let one = [
        "agent",
        "--certname",
        "y",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
    ];
    assert_eq!(options(&runs[0]), one);
    stage.wait_until_settled();
    stage.assert_nothing_left();
}

/// Below a run, on the request's own command line and in the settings: what is named is understood, and nothing else is.
#[test]
fn inside_a_run_too() {
    let stage = Stage::new();
    let puppet = stage.at("bin/puppet");
    let agent = format!("'ruby', '--disable-gems', '{puppet}', 'agent', '--certname', 'named'");
    stage.write("work/named.pp", "");
    let manifest = format!("ask('run', '--', {agent}); hold('go')");
    let run = start(&mut stage.apply("site", &manifest));
    stage.wait_for_state("again", "waiting for the run");
    assert_eq!(only_target(&stage)["kind"], "agent");
    stage.release("go");
    run.wait();
    let one = [
        "agent",
        "--certname",
        "named",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
    ];
    let runs = stage.wait_for_runs("named", 1);
    assert_eq!(options(&runs[0]), one);
    assert_eq!(runs[0].variable("AGAIN_RUN").as_deref(), Some("2"));
    stage.wait_until_settled();
    // In the settings, and a wrapper beside it that is taken for what the run is.
    stage.settings(&format!("command = [{}]", agent.replace('\'', "\"")));
    start(&mut stage.apply("second", "ask('run')")).wait();
    assert_eq!(options(&stage.wait_for_runs("named", 2)[1]), one);
    stage.wait_until_settled();
    write_program(stage.path("work/wrapper"), "#!/bin/sh\nexit 0\n");
    stage.settings(&format!(
        "command = [\"{}\", \"agent\"]",
        stage.at("work/wrapper")
    ));
    start(&mut stage.apply("third", "ask('run', '--delta', '1h')")).wait();
    let status = stage.status();
    let targets = status["targets"].as_array().expect("targets");
    let pending: Vec<&Value> = targets
        .iter()
        .filter(|target| target["timers"][0].is_object())
        .collect();
    assert_eq!(pending[0]["kind"], "apply", "{status:#}");
    assert_eq!(
        pending[0]["command"],
        serde_json::json!([stage.at("work/wrapper"), "agent"])
    );
    stage.again_well(&["stop"]);
    stage.assert_nothing_left();
}
