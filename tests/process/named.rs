use std::fs;
use std::process::Stdio;

use serde_json::Value;

use again_test_support::{
    Ended, LOCK_WAIT, Past, SHORT, Scratch, Started, answer, assert_line, pass_a_tick, start,
    stays, wait_until, write_program,
};

/// Runs `again WORDS -- ruby … puppet OTHERS`.
fn named(scratch: &Scratch, words: &[&str], others: &[&str]) -> Ended {
    let script = scratch.at("bin/puppet");
    let puppet = ["--", "ruby", "--disable-gems", &script];
    scratch.again(&[words, &puppet, others].concat())
}

#[track_caller]
fn schedule(scratch: &Scratch, words: &[&str], others: &[&str]) -> String {
    let done = named(scratch, &[&["run"], words].concat(), others);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    done.out
}

/// Returns the words after the script.
fn options(run: &Past) -> Vec<String> {
    let line = String::from_utf8(run.raw("cmdline")).expect("UTF-8");
    let words = line.trim_end_matches('\0').split('\0');
    let behind = words.skip_while(|word| !word.ends_with("/puppet")).skip(1);
    behind.map(str::to_owned).collect()
}

fn only_target(scratch: &Scratch) -> Value {
    let status = scratch.status();
    assert_eq!(
        status["targets"].as_array().map(Vec::len),
        Some(1),
        "{status:#}"
    );
    status["targets"][0].clone()
}

/// Puts lock, disabled file and summary at paths that a test can write.
fn with_files(scratch: &Scratch, more: &str) {
    fs::create_dir(scratch.path("puppet")).expect("a directory");
    let path = |name: &str| format!("\"{}\"", scratch.at(&format!("puppet/{name}")));
    scratch.settings(&format!(
        "agent_catalog_run_lockfile = {}\nagent_disabled_lockfile = {}\nlastrunfile = {}\n{more}",
        path("lock"),
        path("disabled"),
        path("summary")
    ));
}

/// Starts a run of the agent that holds its lock until the test releases it.
fn holder(scratch: &Scratch) -> Started {
    let lock = scratch.at("puppet/lock");
    let manifest =
        format!("File.binwrite('{lock}', Process.pid.to_s); hold('go'); File.delete('{lock}')");
    let run = start(&mut scratch.agent_of("named", "other", &manifest));
    wait_until("the lock", SHORT, || scratch.path("puppet/lock").exists());
    run
}

/// Summary that Puppet writes after a run that changed two resources.
const SUMMARY: &str = "---\\nversion:\\n  config: 1\\nresources:\\n  changed: 2\\n  failed: 0\\ntime:\\n  catalog_application: 0.1\\n  \
    last_run: #{Time.now.to_i}\\n";

/// The named run does not fail with "already in progress": it waits for the lock, runs once, and
/// its result is known.
#[test]
fn an_agent_waits_for_the_lock_and_leaves_a_summary() {
    let scratch = Scratch::new();
    with_files(&scratch, "");
    let other = holder(&scratch);
    let summary = scratch.at("puppet/summary");
    scratch.write(
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
        "--waitforlock",
        "5",
    ];
    let said = schedule(&scratch, &[], &words);
    println!("{said}");
    assert_eq!(assert_line(&said), "scheduled");
    assert!(
        said.contains("puppet agent runs 0s from now") && said.contains("run 1 of chain"),
        "{said}"
    );
    scratch.wait_for_state("again", "due");
    assert_eq!(only_target(&scratch)["kind"], "agent");
    let explained = named(&scratch, &["explain"], &words).out;
    let lock = format!("held by pid {} (", other.process.pid);
    assert!(explained.contains(&lock), "{explained}");
    assert!(
        explained.contains("  the command as it was named\n"),
        "{explained}"
    );
    let moment = std::time::Duration::from_millis(300);
    stays("it waits for the lock", moment, || {
        scratch.runs("named").is_empty()
    });
    scratch.release("go");
    other.finish();
    let runs = scratch.wait_for_runs("named", 1);
    scratch.wait_until_settled();
    assert_eq!(options(&runs[0]), words);
    let target = only_target(&scratch);
    assert_eq!(
        (&target["last"]["outcome"], &target["last"]["run"]),
        (&"changed".into(), &1.into()),
        "{target:#}"
    );
    assert!(
        scratch.told("ended")[0]
            .1
            .starts_with("2 resources changed, by "),
        "{:?}",
        scratch.told("ended")
    );
    scratch.assert_nothing_left();
}

/// A run of the agent that begins when the named one is due satisfies it.
#[test]
fn an_agent_run_that_began_later_satisfies_it() {
    let scratch = Scratch::new();
    with_files(&scratch, "");
    scratch.write("puppet/disabled", "{\"disabled_message\":\"why\"}");
    scratch.write("work/named.pp", "");
    schedule(
        &scratch,
        &[],
        &["agent", "--onetime", "--certname", "named"],
    );
    let timer = scratch.wait_for_state("again", "held");
    assert!(
        timer["reason"]
            .as_str()
            .is_some_and(|why| why.contains("why")),
        "{timer:#}"
    );
    let other = holder(&scratch);
    wait_until("it to be satisfied", SHORT, || {
        scratch.told("satisfied").len() == 1
    });
    scratch.release("go");
    other.finish();
    scratch.wait_until_settled();
    assert!(scratch.runs("named").is_empty());
    scratch.assert_nothing_left();
}

/// `puppet agent --disable` holds the named run until the agent is enabled; a command that enables
/// the agent is not held.
#[test]
fn a_disabled_agent_holds_it_and_not_what_enables_it() {
    let scratch = Scratch::new();
    with_files(&scratch, "");
    scratch.write("puppet/disabled", "{}");
    scratch.write("work/named.pp", "");
    schedule(&scratch, &[], &["agent", "-t", "--certname", "named"]);
    scratch.wait_for_state("again", "held");
    let disabled = scratch.at("puppet/disabled");
    scratch.write("work/enabler.pp", &format!("File.delete('{disabled}')"));
    schedule(
        &scratch,
        &["--name", "other"],
        &["agent", "--enable", "--certname", "enabler"],
    );
    let enabler = scratch.wait_for_runs("enabler", 1);
    assert_eq!(
        options(&enabler[0]),
        ["agent", "--enable", "--certname", "enabler"]
    );
    let runs = scratch.wait_for_runs("named", 1);
    let words = ["agent", "-t", "--certname", "named"];
    assert_eq!(options(&runs[0]), [&words[..], &LOCK_WAIT].concat());
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A command that would start a daemon becomes a single immediate run, and `again explain` says so.
#[test]
fn a_daemon_becomes_one_run() {
    let scratch = Scratch::new();
    scratch.write("work/named.pp", "");
    let words = ["agent", "--daemonize", "--certname", "named"];
    let explained = named(&scratch, &["explain"], &words).out;
    for line in [
        "  taken away --daemonize: ",
        "  added --onetime: it would start a daemon; one that runs is left alone",
        "  added --no-daemonize: ",
        "  added --no-splay: ",
        "  added --waitforlock=10: it would be skipped if another run took the lock meanwhile",
        "  added --maxwaitforlock=unlimited: it would give up after a minute",
        "run 1\n",
    ] {
        assert!(explained.contains(line), "{line}: {explained}");
    }
    assert!(!scratch.path("state").exists(), "it changed something");
    schedule(&scratch, &[], &words);
    let runs = scratch.wait_for_runs("named", 1);
    let one = [
        "agent",
        "--certname",
        "named",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
    ];
    assert_eq!(options(&runs[0]), [&one[..], &LOCK_WAIT].concat());
    assert_eq!(runs[0].variable("AGAIN_RUN").as_deref(), Some("1"));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// `--noop` on the command line or in the configuration: the run would change nothing, so there is
/// nothing to do.
#[test]
fn a_noop_run_is_not_started() {
    let scratch = Scratch::new();
    scratch.write("work/puppet.conf", "[main]\nnoop = true\n");
    let conf = scratch.at("work");
    for (words, said) in [
        (&["apply", "--noop", "named.pp"][..], "(--noop, "),
        (&["agent", "-t", "--noop"], "(--noop, "),
        (
            &["agent", "-t", "--confdir", &conf],
            "(noop = true in puppet.conf, ",
        ),
    ] {
        let done = named(&scratch, &["run"], words);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
        assert_eq!(assert_line(&done.out), "nothing to do");
        assert!(done.out.contains(said), "{done:?}");
        assert!(scratch.timers().is_empty());
    }
    // In a noop run, a command that is not noop is not run either.
    scratch.write("work/site.pp", "ask('run', '--', '/bin/true')");
    start(&mut scratch.puppet_command(&["apply", "--noop", "site.pp"].map(Into::into))).finish();
    assert_eq!(
        assert_line(&scratch.runs("site")[0].asked()[0].output),
        "nothing to do"
    );
    scratch.assert_nothing_left();
}

#[test]
fn an_apply_needs_its_manifest_and_its_directory() {
    let scratch = Scratch::new();
    scratch.write("work/named.pp", "");
    let said = schedule(&scratch, &["--delta", "1"], &["apply", "named.pp"]);
    assert!(said.contains("puppet apply runs 1s from now"), "{said}");
    assert_eq!(only_target(&scratch)["kind"], "apply");
    fs::remove_file(scratch.path("work/named.pp")).expect("removed");
    wait_until("it to fail", SHORT, || scratch.told("failed").len() == 1);
    let manifest = format!("the manifest {} is not there", scratch.at("work/named.pp"));
    assert_eq!(scratch.told("failed")[0].1, manifest);
    // Another directory is another target.
    let mut elsewhere = scratch.command(scratch.path("bin/again"));
    elsewhere.args([
        "run",
        "--delta",
        "1h",
        "--",
        "ruby",
        "--disable-gems",
        &scratch.at("bin/puppet"),
    ]);
    elsewhere
        .args(["apply", "named.pp"])
        .current_dir(scratch.path("bin"));
    assert_eq!(answer(&mut elsewhere).code, Some(0));
    schedule(&scratch, &["--delta", "1h"], &["apply", "named.pp"]);
    assert_eq!(scratch.timers().len(), 2);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// A file is opened again; a pipe cannot be read twice.
#[test]
fn a_manifest_on_standard_input() {
    let scratch = Scratch::new();
    let manifest = scratch.write("manifest", "note('heard', 'it')");
    let request = || {
        let mut command = scratch.command(scratch.path("bin/again"));
        command.args(["run", "--jitter", "0", "--", "ruby", "--disable-gems"]);
        command.args([&scratch.at("bin/puppet"), "apply"]);
        command
    };
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let done = answer(request().stdin(reader));
    assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{done:?}");
    assert_eq!(assert_line(&done.err), "refused");
    assert!(
        done.err.contains("standard input") && done.err.contains("pipe:["),
        "{done:?}"
    );
    let file = fs::File::open(&manifest).expect("opened");
    let done = answer(request().stdin(Stdio::from(file)));
    assert_eq!(assert_line(&done.out), "scheduled", "{done:?}");
    assert_eq!(scratch.wait_for_runs("stdin", 1)[0].text("heard"), "it");
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A script named by its path, through PATH, or through a wrapper named puppet counts as Puppet's.
/// It has the identity of the run that it becomes, so the two share timers and cap.
#[test]
fn a_script_and_a_wrapper_called_puppet() {
    let scratch = Scratch::new();
    let stand_in = fs::read_to_string(scratch.path("bin/puppet")).expect("the stand-in");
    write_program(
        scratch.path("work/puppet"),
        &format!("#!/usr/bin/ruby --disable-gems\n{stand_in}"),
    );
    let script = scratch.at("work/puppet");
    for (name, manifest) in [
        ("x", "ask('run', '--delta', '1h', '--name', 'of-the-run')"),
        ("y", ""),
    ] {
        fs::create_dir_all(scratch.path("runs")).expect("there");
        scratch.write(&format!("work/{name}.pp"), manifest);
    }
    let words = [
        "agent",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
        "--certname",
        "x",
    ];
    let mut run = scratch.command(&script);
    run.args(words);
    scratch.with_output(&mut run);
    start(&mut run).finish();
    scratch.wait_for_state("of-the-run", "waiting");
    let path = format!("{}:/usr/bin:/bin", scratch.at("work"));
    for (n, program) in [script.as_str(), "puppet"].iter().enumerate() {
        let mut request = scratch.command(scratch.path("bin/again"));
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
    let targets = scratch.status()["targets"]
        .as_array()
        .expect("targets")
        .len();
    assert_eq!(targets, 2, "{:#}", scratch.status());
    let mut request = scratch.command(scratch.path("bin/again"));
    request
        .env("PATH", &path)
        .args(["run", "--delta", "1h", "--name", "same", "--", "puppet"]);
    assert_eq!(answer(request.args(words)).code, Some(0));
    let status = scratch.status();
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
    scratch.again_well(&["stop"]);
    // The wrapper.
    fs::create_dir(scratch.path("wrap")).expect("a directory");
    let wrapper = scratch.path("wrap/puppet");
    write_program(
        &wrapper,
        &format!(
            "#!/bin/sh\nexec ruby --disable-gems {} \"$@\"\n",
            scratch.at("bin/puppet")
        ),
    );
    let wrapped = scratch.at("wrap/puppet");
    let said = scratch.again_well(&[
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
    let runs = scratch.wait_for_runs("y", 1);
    let one = [
        "agent",
        "--certname",
        "y",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
    ];
    assert_eq!(options(&runs[0]), [&one[..], &LOCK_WAIT].concat());
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// A named command works below a run, on the request's own command line and in the settings; no
/// other command is recognized.
#[test]
fn inside_a_run_too() {
    let scratch = Scratch::new();
    let puppet = scratch.at("bin/puppet");
    let agent = format!("'ruby', '--disable-gems', '{puppet}', 'agent', '--certname', 'named'");
    scratch.write("work/named.pp", "");
    let manifest = format!("ask('run', '--', {agent}); hold('go')");
    let run = start(&mut scratch.apply("site", &manifest));
    scratch.wait_for_state("again", "waiting for the run");
    assert_eq!(only_target(&scratch)["kind"], "agent");
    scratch.release("go");
    run.finish();
    let one = [
        "agent",
        "--certname",
        "named",
        "--onetime",
        "--no-daemonize",
        "--no-splay",
    ];
    let runs = scratch.wait_for_runs("named", 1);
    assert_eq!(options(&runs[0]), [&one[..], &LOCK_WAIT].concat());
    assert_eq!(runs[0].variable("AGAIN_RUN").as_deref(), Some("2"));
    scratch.wait_until_settled();
    // The command is in the settings, and a wrapper beside it is taken for the run's own.
    scratch.settings(&format!("command = [{}]", agent.replace('\'', "\"")));
    start(&mut scratch.apply("second", "ask('run')")).finish();
    let second = &scratch.wait_for_runs("named", 2)[1];
    assert_eq!(options(second), [&one[..], &LOCK_WAIT].concat());
    scratch.wait_until_settled();
    write_program(scratch.path("work/wrapper"), "#!/bin/sh\nexit 0\n");
    scratch.settings(&format!(
        "command = [\"{}\", \"agent\"]",
        scratch.at("work/wrapper")
    ));
    start(&mut scratch.apply("third", "ask('run', '--delta', '1h')")).finish();
    let status = scratch.status();
    let targets = status["targets"].as_array().expect("targets");
    let pending: Vec<&Value> = targets
        .iter()
        .filter(|target| target["timers"][0].is_object())
        .collect();
    assert_eq!(pending[0]["kind"], "apply", "{status:#}");
    assert_eq!(
        pending[0]["command"],
        serde_json::json!([scratch.at("work/wrapper"), "agent"])
    );
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// Below an agent daemon without a current run, as in a hook of its service, only a named command
/// can be run, and the error says so correctly.
#[test]
fn below_a_daemon_without_a_run() {
    let scratch = Scratch::new();
    let done = scratch.at("done");
    let named = format!("ask('run', '--', '/usr/bin/touch', '{done}')");
    scratch.write("work/idle.pp", &format!("ask('run'); {named}"));
    let words = ["agent", "--no-daemonize", "--certname", "idle"];
    start(&mut scratch.puppet_command(&words.map(Into::into))).finish();
    let asked = scratch.runs("idle")[0].asked();
    let [bare, named] = &asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!((bare.code, named.code), (1, 0), "{asked:?}");
    assert!(
        bare.output.contains("or with 'again run -- COMMAND'"),
        "{}",
        bare.output
    );
    assert_eq!(assert_line(&named.output), "scheduled");
    wait_until("the command", SHORT, || scratch.path("done").exists());
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The id of an orchestrator's job does not identify a target: the runs of all jobs are the same
/// target, under one cap.
#[test]
fn a_jobs_number_makes_no_target() {
    let scratch = Scratch::new();
    for (n, words) in [&["--job-id", "17"][..], &["--job-id=18"], &[]]
        .iter()
        .enumerate()
    {
        let name = n.to_string();
        let agent = ["agent", "--onetime", "--no-daemonize", "--no-splay"];
        schedule(
            &scratch,
            &["--delta", "1h", "--name", &name],
            &[&agent, *words].concat(),
        );
    }
    assert_eq!(
        only_target(&scratch)["timers"].as_array().map(Vec::len),
        Some(3)
    );
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}

/// A command is judged by its own words, after programs such as `nice` that run it.
#[test]
fn a_command_behind_nice_and_flock_is_the_agent() {
    let scratch = Scratch::new();
    scratch.write("work/named.pp", "");
    let (lock, script) = (scratch.at("flock"), scratch.at("bin/puppet"));
    let through = [
        "run",
        "--",
        "env",
        "-u",
        "X",
        "A=1",
        "nice",
        "-n",
        "1",
        "timeout",
        "-k",
        "5",
        "60",
        "flock",
        "-w",
        "5",
        &lock,
        "setsid",
        "-w",
        "ruby",
        "--disable-gems",
        &script,
        "agent",
        "--certname",
        "named",
    ];
    let said = scratch.again_well(&through);
    assert!(said.contains("puppet agent runs "), "{said}");
    let runs = scratch.wait_for_runs("named", 1);
    let one = "agent --certname named --onetime --no-daemonize --no-splay";
    let one: Vec<&str> = one.split(' ').chain(LOCK_WAIT).collect();
    assert_eq!(options(&runs[0]), one);
    assert_eq!(runs[0].variable("A").as_deref(), Some("1"));
    scratch.wait_until_settled();
}

/// A command of another program waits only for the run that made the request: it is not taken for a
/// run, reads no summary, and no run satisfies it.
#[test]
fn a_command_of_another_program_is_not_a_run_of_puppet() {
    let scratch = Scratch::new();
    with_files(&scratch, "jitter = 0\n");
    let summary = scratch.at("puppet/summary");
    let note = scratch.script("work/note", "echo noted >> \"$(dirname \"$0\")/noted\"");
    let noted = || scratch.text("work/noted").lines().count();
    // The run writes a summary after its request; a later run of the agent holds the lock.
    let manifest = format!(
        "ask('run', '--delta', '1', '--', '{note}'); hold('go'); File.write('{summary}', \"{SUMMARY}\")"
    );
    let run = start(&mut scratch.agent("site", &manifest));
    scratch.wait_for_state("again", "waiting for the run");
    let target = only_target(&scratch);
    assert_eq!(target["kind"], "command", "{target:#}");
    let longer = std::time::Duration::from_millis(1300);
    stays("the run goes on", longer, || noted() == 0);
    scratch.release("go");
    run.finish();
    fs::remove_file(scratch.path("go")).expect("there");
    let other = holder(&scratch);
    wait_until("it to run", SHORT, || noted() == 1);
    scratch.release("go");
    other.finish();
    scratch.wait_until_settled();
    let ended = scratch.told("ended");
    assert!(
        ended[0].1.contains("a command that is not puppet's"),
        "{ended:?}"
    );
    assert!(scratch.told("satisfied").is_empty());
    scratch.assert_nothing_left();
}

/// A later run that requests the same command has not satisfied it; a later start of the command
/// has.
#[test]
fn a_run_that_asks_for_the_same_command_has_not_done_its_job() {
    let scratch = Scratch::new();
    let note = scratch.script("work/note", "echo noted >> \"$(dirname \"$0\")/noted\"");
    let noted = || scratch.text("work/noted").lines().count();
    let ask =
        |name: &str| format!("ask('run', '--name', '{name}', '--jitter', '0', '--', '{note}')");
    let run = start(&mut scratch.apply("first", &format!("{}; hold('go')", ask("x"))));
    scratch.wait_for_state("x", "waiting for the run");
    scratch.again_well(&["disable", "for a test"]);
    scratch.release("go");
    run.finish();
    scratch.wait_for_state("x", "held");
    pass_a_tick();
    start(&mut scratch.apply("second", &ask("y"))).finish();
    assert_eq!(scratch.told("refused").len(), 1);
    scratch.again_well(&["enable"]);
    wait_until("the command to run", SHORT, || noted() == 1);
    scratch.wait_until_settled();
    assert!(scratch.told("satisfied").is_empty());
    scratch.assert_nothing_left();
}
