use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;

use crate::{assert_same_run, changes_once, hold_until, until_held};
use again_test_support::{LONG, Process, Record, Scratch, text, wait_until, write_program};

/// Long enough for a rerun that does not wait for the end of the process to be seen beside it.
const LINGER: &str = "0.4";

/// Both starts, after checking that there were exactly two and that both applied their catalog.
pub fn two_runs(scratch: &Scratch) -> (Record, Record) {
    scratch.settle(LONG);
    let starts = scratch.starts();
    let catalogs = scratch.catalogs();
    assert_eq!(
        (starts.len(), catalogs.len()),
        (2, 2),
        "two runs, each with a catalog"
    );
    assert_eq!(catalogs[1].process, starts[1].process);
    assert_same_run(&starts[0], &starts[1]);
    let added = ["AGAIN_CHAIN", "AGAIN_RUN", "AGAIN_TIMER"]
        .map(|name| starts[1].environment.get(name).cloned().unwrap_or_default());
    assert!(!added[0].is_empty());
    assert_eq!(added[1..], ["2", "again"]);
    (starts[0].clone(), starts[1].clone())
}

#[test]
fn a_manifest_by_its_path_is_applied_again() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.write(
        "elsewhere/site.pp",
        &scratch.manifest(&changes_once(&scratch, "Exec['again']")),
    );
    let run = scratch
        .puppet_apply(&[&text(manifest), "--tags", ""])
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[0]);
    let [line] = &run.lines_of_again()[..] else {
        panic!("{}", run.out)
    };
    assert!(line.starts_with("again: scheduled: "), "{line}");
    let (_, second) = two_runs(&scratch);
    assert_eq!(
        second.command[5..],
        [
            text(scratch.path("elsewhere/site.pp")),
            "--tags".into(),
            String::new()
        ]
    );
    assert_eq!(second.descriptors[&0], "/dev/null");
}

#[test]
fn a_manifest_by_a_relative_path_is_applied_again_in_the_same_directory() {
    let scratch = Scratch::with_puppet();
    scratch.write(
        "work/sub/site.pp",
        &scratch.manifest(&changes_once(&scratch, "Exec['again']")),
    );
    scratch
        .puppet_apply(&["../sub/site.pp"])
        .directory(scratch.path("work/sub"))
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[0]);
    let (_, second) = two_runs(&scratch);
    assert_eq!(second.directory, scratch.path("work/sub"));
}

#[test]
fn a_manifest_on_the_command_line_is_applied_again() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    scratch
        .puppet_apply(&["-e", &manifest])
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[0]);
    let (_, second) = two_runs(&scratch);
    assert_eq!(second.command[6], manifest);
}

#[test]
fn a_directory_of_manifests_is_applied_again() {
    let scratch = Scratch::with_puppet();
    scratch.write("work/site.d/1.pp", &scratch.manifest(""));
    scratch.write("work/site.d/2.pp", &changes_once(&scratch, "Exec['again']"));
    scratch
        .puppet_apply(&["site.d"])
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[0]);
    two_runs(&scratch);
}

#[test]
fn a_manifest_from_standard_input_is_applied_again_if_it_is_a_file() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.write(
        "work/input",
        &scratch.manifest(&changes_once(&scratch, "Exec['again']")),
    );
    let input = File::open(&manifest).expect("the manifest");
    scratch
        .puppet_apply(&[])
        .stdin(input)
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[0]);
    let (first, second) = two_runs(&scratch);
    assert_eq!(
        (&first.descriptors[&0], &second.descriptors[&0]),
        (&text(&manifest), &text(&manifest))
    );
}

/// Signals, umask, nice level and limits, set apart from the usual before the first run.
#[test]
fn a_rerun_has_the_signals_the_umask_the_nice_level_and_the_limits_of_the_first_run() {
    let scratch = Scratch::with_puppet();
    scratch.write(
        "work/site.pp",
        &scratch.manifest(&changes_once(&scratch, "Exec['again']")),
    );
    let script = "umask 027; ulimit -n 777 -c 0; exec nice -n 3 env --ignore-signal=HUP,INT,QUIT,PIPE puppet apply --confdir ../puppet/conf site.pp";
    scratch
        .prepare(&["bash", "-c", script])
        .env("RIG_LINGER", LINGER)
        .run()
        .expect(&[0]);
    let (_, second) = two_runs(&scratch);
    // SIGHUP as by nohup, SIGQUIT as by `&`, SIGPIPE as by systemd. SIGINT is one that puppet traps.
    assert_eq!(second.ignored_signals() & 0x1007, 0x1005);
    assert_eq!(second.status("Umask"), "0027");
    assert_eq!(
        Some(second.nice()),
        Process::now(std::process::id() as i32)
            .and_then(|test| test.stat(19))
            .map(|nice| nice + 3)
    );
    assert!(
        second
            .limits
            .lines()
            .any(|line| line.starts_with("Max open files") && line.contains(" 777 ")),
        "{}",
        second.limits
    );
}

/// The output goes to a log, whole: the reader of the Exec's pipe has long gone, and writing there would kill the rerun.
#[test]
fn the_output_of_a_rerun_is_in_its_log() {
    let scratch = Scratch::with_puppet();
    let much = "exec { 'much': command => ['/usr/bin/seq', '-f', 'line %.0f of much', '4000'], logoutput => true }\n\
                notify { 'the end of it': require => Exec['much'] }";
    scratch.write(
        "work/site.pp",
        &scratch.manifest(&format!(
            "{}\n{much}",
            changes_once(&scratch, "Exec['again']")
        )),
    );
    let first = scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    scratch.settle(LONG);
    let (logs, catalogs) = (scratch.logs(), scratch.catalogs());
    let [(_, log)] = &logs[..] else {
        panic!("{logs:?}")
    };
    for n in 1..=4000 {
        assert!(
            log.contains(&format!("line {n} of much")),
            "line {n} is missing"
        );
    }
    // The last that Puppet says of a run, in both.
    for output in [&first.out, log] {
        assert!(
            output.contains("the end of it")
                && output
                    .trim_end()
                    .lines()
                    .last()
                    .is_some_and(|line| line.contains("Applied catalog in"))
        );
    }
    let rerun = &catalogs[1];
    assert_eq!(rerun.descriptors[&1], rerun.descriptors[&2]);
    assert!(
        rerun.descriptors[&1].starts_with(&text(scratch.path("logs"))),
        "{:?}",
        rerun.descriptors
    );
    assert!(scratch.starts()[1].ended().is_some(), "it ended in order");
}

#[test]
fn a_manifest_from_a_pipe_is_refused() {
    let scratch = Scratch::with_puppet();
    let mut run = scratch.puppet_apply(&[]).stdin(Stdio::piped()).start();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    run.stdin
        .take()
        .expect("a pipe")
        .write_all(manifest.as_bytes())
        .expect("written");
    // The report shows it: the Exec fails.
    let run = run.wait().expect(&[0]);
    assert!(run.said().contains("returned 1 instead of"), "{run:?}");
    let [line] = &run.lines_of_again()[..] else {
        panic!("{}", run.out)
    };
    assert!(
        line.starts_with("again: refused: the manifest came from standard input"),
        "{line}"
    );
    assert!(line.contains("(pipe:["), "the evidence: {line}");
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1);
}

#[test]
fn a_manifest_that_has_gone_by_then_is_an_error_in_the_history() {
    let scratch = Scratch::with_puppet();
    let body = format!(
        "{}\nexec {{ '/bin/rm {}/work/site.pp': require => Exec['again'] }}",
        changes_once(&scratch, "Exec['again']"),
        scratch.root()
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!(
        (scratch.starts().len(), scratch.catalogs().len()),
        (1, 1),
        "nothing was applied in its place"
    );
    let failed = scratch.history_of("failed");
    let [entry] = &failed[..] else {
        panic!("{:#?}", scratch.history())
    };
    assert!(
        entry["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("site.pp")),
        "{entry:#}"
    );
    let missed = &scratch.status()["targets"][0]["missed"];
    assert_eq!(missed["what"], "failed", "{missed:#}");
    assert_eq!(missed["reason"], entry["reason"]);
    let shown = scratch.again(&["status"]);
    let shown = shown.out;
    assert!(
        shown.contains("failed ") && shown.contains("timer 'again', no rerun: "),
        "{shown}"
    );
}

/// Under noop Puppet itself does not run a refreshonly Exec, unless both sides say `noop => false`.
#[test]
fn a_noop_run_is_never_run_again() {
    let scratch = Scratch::with_puppet();
    let body = format!(
        "file {{ '{root}/made': content => 'x', noop => false, notify => Exec['ask'] }}\n\
         exec {{ 'ask': command => ['{root}/bin/again', 'run'], refreshonly => true, noop => false, logoutput => true }}",
        root = scratch.root()
    );
    scratch.write("work/site.pp", &scratch.bare_manifest(&body));
    let run = scratch
        .puppet_apply(&["--noop", "site.pp"])
        .run()
        .expect(&[0]);
    let [line] = &run.lines_of_again()[..] else {
        panic!("{}", run.out)
    };
    assert!(
        line.starts_with("again: nothing to do: ") && line.contains("--noop"),
        "{line}"
    );
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1);
}

#[test]
fn without_a_puppet_run_above_the_error_names_both_ways_out() {
    let scratch = Scratch::with_puppet();
    let output = scratch.again(&["run"]);
    assert_eq!(output.code, Some(1));
    let said = output.said();
    assert!(
        said.starts_with("again: error: no puppet run above this process"),
        "{said}"
    );
    assert!(
        said.contains("again converge -- puppet") && said.contains("again run -- COMMAND"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(scratch.processes().is_empty());
}

/// What `again explain` says inside a run is what the rerun then is, and asking changes nothing.
#[test]
fn explain_names_the_command_and_changes_nothing() {
    let scratch = Scratch::with_puppet();
    let go = text(scratch.path("go"));
    let explain = format!(
        "exec {{ 'explain': command => ['/bin/sh', '-c', '{root}/bin/again explain > {root}/explained'], provider => 'posix' }}\n",
        root = scratch.root()
    );
    scratch.write(
        "work/site.pp",
        &scratch.bare_manifest(&(explain + &hold_until("hold", &go))),
    );
    let run = scratch.puppet_apply(&["site.pp", "--tags", ""]).start();
    until_held(&scratch);
    let outside = scratch.again(&["explain", "--pid", &run.process.pid.to_string()]);
    fs::write(&go, "").expect("go");
    run.wait().expect(&[0]);
    let inside = fs::read_to_string(scratch.path("explained")).expect("what explain said");
    for said in [inside, outside.out] {
        assert!(
            said.contains("/usr/bin/puppet") && said.contains("apply") && said.contains("site.pp"),
            "{said}"
        );
        assert!(
            said.contains(&text(scratch.path("work"))),
            "the working directory: {said}"
        );
    }
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1);
    assert!(scratch.history().is_empty(), "{:?}", scratch.history());
}

/// Puppet's noop from its configuration counts as much as the option, and `--no-noop` goes before it.
#[test]
fn noop_by_puppet_conf_counts_too() {
    let scratch = Scratch::with_puppet();
    let body = format!(
        "exec {{ 'ask': command => ['{root}/bin/again', 'run', '--delta', '1h'], noop => false, logoutput => true }}",
        root = scratch.root()
    );
    scratch.write("work/site.pp", &scratch.bare_manifest(&body));
    let is_noop =
        "nothing to do: a noop run is never run again (noop = true in puppet.conf, run pid ";
    for (conf, words, outcome) in [
        ("noop = true", &["site.pp"][..], is_noop),
        ("noop = true", &["--no-noop", "site.pp"], "scheduled: "),
        ("[user]\nnoop = true", &["site.pp"], is_noop),
        // Of the agent's runs, and of no others.
        ("[agent]\nnoop = true", &["site.pp"], "scheduled: "),
    ] {
        scratch.puppet_conf(conf);
        let run = scratch.puppet_apply(words).run().expect(&[0]);
        let [line] = &run.lines_of_again()[..] else {
            panic!("{}", run.out)
        };
        assert!(
            line.starts_with(&format!("again: {outcome}")),
            "{conf}: {line}"
        );
    }
    assert!(scratch.again(&["stop"]).code == Some(0));
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 4);
}

/// `apply` reads `[user]` before `[main]`, and nothing that is the agent's: its summary is found where it is.
#[test]
fn an_applys_summary_is_where_the_section_user_says() {
    for section in ["user", "agent"] {
        let scratch = Scratch::with_puppet();
        let other = scratch.at("puppet/other");
        scratch.puppet_conf(&format!("[{section}]\npublicdir = {other}"));
        let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
        scratch.write("work/site.pp", &manifest);
        scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
        wait_until("the rerun", LONG, || scratch.catalogs().len() == 2);
        scratch.settle(LONG);
        scratch.again(&["history"]);
        let ended = scratch.history_of("ended");
        assert_eq!(ended[0]["outcome"], "unchanged", "{section}: {ended:#?}");
    }
}

const GEMS: [&str; 6] = [
    "puppet",
    "concurrent-ruby",
    "deep_merge",
    "semantic_puppet",
    "facter",
    "puppet-resource_api",
];

fn bundled<'a>(
    scratch: &'a Scratch,
    conf: &'a str,
    manifest: &'a str,
) -> again_test_support::PuppetCommand {
    let gems: String = GEMS.iter().map(|gem| format!("gem '{gem}'\n")).collect();
    scratch.write("work/Gemfile", &gems);
    let words = [
        "bundle",
        "exec",
        "puppet",
        "apply",
        "--confdir",
        conf,
        manifest,
    ];
    scratch.prepare(&words)
}

/// `bundle exec` of a puppet with another interpreter line than bundler's own becomes puppet by exec.
#[test]
fn a_run_that_bundler_executes_is_run_again() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let (conf, site) = (
        text(scratch.path("puppet/conf")),
        text(scratch.write("work/site.pp", &manifest)),
    );
    bundled(&scratch, &conf, &site).run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!(scratch.catalogs().len(), 2);
}

/// Otherwise bundler loads puppet into its own process and puts a title in place of its command line: it cannot be told what to
/// run again, unless the settings say so.
#[test]
fn a_run_that_bundler_loads_needs_the_command_to_be_set() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let (conf, site) = (
        text(scratch.path("puppet/conf")),
        text(scratch.write("work/site.pp", &manifest)),
    );
    let puppet = fs::read_to_string("/usr/bin/puppet").expect("puppet");
    let (_, script) = puppet.split_once('\n').expect("an interpreter line");
    fs::create_dir(scratch.path("gem")).expect("created");
    write_program(
        scratch.path("gem/puppet"),
        &format!("#!/usr/bin/env ruby\n{script}"),
    );
    let path = format!(
        "{}:/usr/sbin:/usr/bin:/sbin:/bin",
        text(scratch.path("gem"))
    );
    let run = || bundled(&scratch, &conf, &site).env("PATH", &path);

    let refused = run().run();
    assert!(
        refused.out.contains(
            "a title has overwritten the command line of this run, as 'bundle exec' does"
        ),
        "{}",
        refused.out
    );
    scratch.settle(LONG);
    assert_eq!(scratch.catalogs().len(), 1);

    fs::remove_file(scratch.path("made")).expect("removed");
    scratch.settings(&format!(
        "command = [\"bundle\", \"exec\", \"puppet\", \"apply\", \"--confdir\", \"{conf}\", \"{site}\"]"
    ));
    run().run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!(
        scratch.catalogs().len(),
        3,
        "one run by hand, and its rerun"
    );
}
