use std::collections::BTreeSet;
use std::fs;

use again_base::puppet::options::{FLAGS, Names, VALUED};

use again_test_support::place::{Machine, outcomes, place, plain, run_twice, said, scratch};
use again_test_support::{
    CachedAgent, LOCK_WAIT, LONG, Process, SHORT, Scratch, changes_once, repository, text,
    wait_for, wait_until,
};

/// Long enough for a rerun that does not wait for the end of the process to be seen beside it.
#[test]
fn this_is_the_puppet_of_this_place() {
    let (status, version) = said(&plain(&["puppet", "--version"]));
    assert_eq!(status, Some(0), "{version}");
    assert!(
        version.starts_with(place().version),
        "{} has Puppet {version}",
        place().name
    );
    println!("{}: Puppet {}", place().name, version.trim());
}

/// A setting that `again` does not know may be taken for one with a value, or the other way round.
#[test]
fn every_setting_of_this_puppet_is_known() {
    let script = "require 'puppet'; Puppet.initialize_settings([]); \
                  Puppet.settings.each { |n, s| puts \"#{s.is_a?(Puppet::Settings::BooleanSetting)} #{n}\" }";
    let (status, listed) = said(&plain(&["ruby", "-W0", "-e", script]));
    assert_eq!(status, Some(0), "{listed}");
    let of = |kind: &str| -> BTreeSet<&str> {
        listed
            .lines()
            .filter_map(|line| line.strip_prefix(kind))
            .map(str::trim)
            .collect()
    };
    let (flags, valued) = (of("true "), of("false "));
    assert!(flags.len() > 40 && valued.len() > 150, "{listed}");
    let known = |names: Names| names.iter().collect::<BTreeSet<&str>>();
    assert!(
        flags.is_subset(&known(FLAGS)),
        "flags: {:?}",
        flags.difference(&known(FLAGS))
    );
    assert!(
        valued.is_subset(&known(VALUED)),
        "settings with a value: {:?}",
        valued.difference(&known(VALUED))
    );
}

/// Without one of them the module would send no events, or make no request after a failure, in silence.
#[test]
fn this_puppet_has_every_method_that_the_module_builds_on() {
    let script = repository().join("puppet-module/spec/support/hooks.rb");
    let (status, missing) = said(&plain(&["ruby", "-W0", &text(&script)]));
    assert_eq!((status, missing.as_str()), (Some(0), ""));
}

/// Writes down what the fact says in each run, by the run's number.
pub fn noted_fact(scratch: &Scratch) -> String {
    format!(
        "file {{ \"{}/fact-${{facts['again']['run']}}\": content => inline_template('<%= require \"json\"; JSON.generate(@facts[\"again\"]) %>') }}",
        scratch.root()
    )
}

/// What [`noted_fact`] wrote in a run.
pub fn fact(scratch: &Scratch, run: u32) -> serde_json::Value {
    let path = scratch.path(&format!("fact-{run}"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The fact of a first run and of its rerun.
pub fn assert_facts(scratch: &Scratch) {
    let root = scratch.root();
    let (first, second) = (fact(scratch, 1), fact(scratch, 2));
    for fact in [&first, &second] {
        assert_eq!(
            fact["paths"],
            serde_json::json!({
                "agent_catalog_run_lockfile": format!("{root}/puppet/var/state/agent_catalog_run.lock"),
                "agent_disabled_lockfile": format!("{root}/puppet/var/state/agent_disabled.lock"),
                "lastrunfile": format!("{root}/puppet/public/last_run_summary.yaml"),
                "pidfile": format!("{root}/puppet/run/agent.pid"),
            })
        );
        assert!(fact["version"].is_string(), "{fact:#}");
        assert_eq!(fact["disabled"], false);
        assert_eq!(fact["pending"], serde_json::json!({}), "{fact:#}");
    }
    assert!(first.get("chain").is_none() && first.get("timer").is_none());
    assert_eq!(second["timer"], "again");
    assert_eq!(second["cap"]["used"], 1, "{second:#}");
    let rerun = &scratch.starts()[1];
    assert_eq!(
        second["chain"].as_str(),
        Some(rerun.environment["AGAIN_CHAIN"].as_str())
    );
}

#[test]
fn an_apply_is_run_again_and_the_fact_is_right_in_both_runs() {
    let scratch = scratch();
    let body = changes_once(&scratch, "Exec['again']") + "\n" + &noted_fact(&scratch);
    scratch.write("work/site.pp", &scratch.manifest(&body));
    let command = scratch.puppet_apply(&["site.pp", "--tags", ""]);
    let (_, starts) = run_twice(&scratch, command, 0);
    assert_eq!(
        starts[0].command[..3],
        [place().ruby, place().script, "apply"]
    );
    assert_facts(&scratch);
    // It wrote its fact.
    assert_eq!(outcomes(&scratch), ["changed"]);
}

/// The four ends that a summary can tell of, and what it says of each in this Puppet's words.
#[test]
fn the_outcome_of_each_rerun_is_told() {
    let scratch = scratch();
    let root = scratch.root();
    // Each asks for the next: by an Exec that changes, by one beside a failure, and in time for one more that changes nothing.
    let ask = |name: &str, delta: u32| {
        format!(
            "exec {{ 'ask {name}': command => ['{root}/bin/again', 'run', '--name', '{name}', '--delta', '{delta}'] }}"
        )
    };
    let body = format!(
        "case $facts['again']['run'] {{\n  1: {{ {} }}\n  2: {{ {} }}\n  3: {{ exec {{ '/bin/false': }} {} }}\n  default: {{}}\n}}",
        ask("one", 0),
        ask("two", 0),
        ask("three", 0)
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!(
        outcomes(&scratch),
        ["changed", "failed", "unchanged"],
        "{:#?}",
        scratch.history_of("ended")
    );
    let last = &scratch.status()["targets"][0]["last"];
    assert_eq!(last["outcome"], "unchanged", "{last:#}");
    assert!(
        last["evidence"]
            .as_str()
            .is_some_and(|e| e.contains("puppet/public/last_run_summary.yaml")),
        "{last:#}"
    );
}

/// What this Puppet keeps of a resource, its events and its run is where the hook of `again_events` looks for it.
#[test]
fn events_are_told() {
    let scratch = scratch();
    let root = scratch.root();
    fs::create_dir(scratch.path("spool")).expect("a spool");
    let body = format!(
        "again_events {{ 'this node': spool => '{root}/spool', socket => '{root}/none', helper => '{root}/bin/again', values => true }}
        file {{ '{root}/one': content => 'x', notify => Exec['once more'] }}
        -> exec {{ 'wrong': command => '/bin/sh -c \"exit 3\"' }}
        exec {{ 'once more': command => '/bin/true', refreshonly => true, before => Exec['wrong'] }}
        exec {{ 'secret': command => Sensitive('/bin/echo planted'), before => File['{root}/one'] }}
        file {{ '{root}/two': content => 'planted', show_diff => false, before => Exec['secret'] }}"
    );
    scratch.write("work/events.pp", &body);
    scratch.puppet_apply(&["events.pp"]).run().expect(&[0]);
    let spool: Vec<_> = fs::read_dir(scratch.path("spool"))
        .expect("the spool")
        .map(|file| file.expect("a file").path())
        .collect();
    let [file] = &spool[..] else {
        panic!("one run, not {spool:?}")
    };
    let said = fs::read_to_string(file).expect("a file");
    let lines: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let [begun, events @ .., ended] = &lines[..] else {
        panic!("{said}")
    };
    let puppet = begun["begun"]["puppet"].as_str().expect("a version");
    assert!(puppet.starts_with(place().version), "{said}");
    assert_eq!(begun["begun"]["origins"], serde_json::json!([]), "{said}");
    let told: Vec<_> = events
        .iter()
        .map(|line| line["event"].clone())
        .map(|event| serde_json::json!([event["n"], event["resource"], event["change"]]))
        .collect();
    assert_eq!(
        serde_json::Value::from(told),
        serde_json::json!([
            [1, format!("File[{root}/two]"), "changed"],
            [2, "Exec[secret]", "changed"],
            [3, format!("File[{root}/one]"), "changed"],
            [4, "Exec[once more]", "refreshed"],
            [5, "Exec[wrong]", "failed"],
        ]),
        "{said}"
    );
    let first = &events[0]["event"];
    assert_eq!(first["within"], serde_json::json!(["Stage[main]", "Main"]));
    assert_eq!(first["line"], 6, "{said}");
    assert_eq!(events[4]["event"]["old"], "notrun", "{said}");
    assert!(!said.contains("planted"), "{said}");
    let ended = &ended["ended"];
    assert_eq!(
        (&ended["n"], &ended["status"]),
        (&6.into(), &"failed".into())
    );
    assert_eq!(ended["metrics"]["events.failure"], 1, "{said}");
    assert_eq!(
        ended["transaction"].as_str().map(str::len),
        Some(36),
        "{said}"
    );
}

/// One-off runs of the agent, from its cached catalog.
#[test]
fn a_test_run_of_the_agent_is_run_again() {
    let scratch = scratch();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let agent = CachedAgent::new(&scratch, &manifest, "");
    run_twice(&scratch, agent.command(&["--test"]), 2);
    assert_eq!(outcomes(&scratch), ["unchanged"]);
}

/// The shortest command line there is, which the title of a run's process overwrites, and the environment behind it too.
#[test]
fn a_daemons_run_gets_one_rerun_and_the_daemon_is_left_alone() {
    let scratch = scratch();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let agent = CachedAgent::new(
        &scratch,
        &manifest,
        "runinterval = 3600\nsplay = true\nsplaylimit = 1",
    );
    agent.plain().run().expect(&[0]);
    let daemon = wait_for("the daemon", SHORT, || agent.daemon());
    let command = daemon.command();
    wait_until("the rerun", LONG, || scratch.catalogs().len() == 2);
    let rerun = scratch.catalogs()[1].process;
    wait_until("its end", LONG, || {
        !rerun.alive() && scratch.processes() == [daemon]
    });
    let (catalogs, starts) = (scratch.catalogs(), scratch.starts());
    assert_eq!(catalogs[0].stat(4), i64::from(daemon.pid));
    println!(
        "{}: a daemon is {command:?}, its run {:?}",
        place().name,
        catalogs[0].command
    );
    let [started, rerun] = &starts[..] else {
        panic!("the daemon and one rerun, not {starts:#?}")
    };
    assert_eq!(catalogs[1].process, rerun.process);
    let added = "--onetime --no-daemonize --no-splay"
        .split(' ')
        .chain(LOCK_WAIT);
    let added: Vec<String> = added.map(str::to_owned).collect();
    assert_eq!(rerun.command, [command.clone(), added].concat());
    assert_eq!(
        rerun.environment_without_again(),
        started.environment_without_again(),
        "the environment, whole"
    );
    assert_eq!(daemon.command(), command);
    assert_eq!(Process::now(daemon.pid), Some(daemon));
    daemon.end();
    scratch.settle(LONG);
}

/// A site's `Exec { … }` must not reach the module's Execs: the class sets every attribute that this Puppet knows.
#[test]
fn the_class_sets_every_attribute_of_an_exec() {
    let class = fs::read_to_string(repository().join("puppet-module/manifests/again.pp"))
        .expect("the class");
    let (_, hash) = class.split_once("  $exec = {\n").expect("the attributes");
    let set = hash.lines().take_while(|line| *line != "  }");
    let set = set.filter_map(|line| line.trim().strip_prefix('\''));
    let mut known: BTreeSet<&str> = set.filter_map(|line| line.split('\'').next()).collect();
    // The command, which is each Exec's own; a class's; and what stays the site's.
    known.extend(["command", "stage", "alias", "audit", "noop"]);
    let script = "require 'puppet'; puts Puppet::Type.type(:exec).allattrs";
    let (status, listed) = said(&plain(&["ruby", "-W0", "-e", script]));
    assert_eq!(status, Some(0), "{listed}");
    assert_eq!(listed.lines().collect::<BTreeSet<_>>(), known);
}

/// Everything by default: the class installs the helper, changes nothing the second time, and its paths are those of this layout.
#[test]
fn the_class_as_it_comes() {
    let machine = Machine::get();
    let manifest = "include common::again";
    let (status, output) = machine.apply(&["-e", manifest]);
    // Another test may have been here before.
    assert!(matches!(status, Some(0 | 2)), "{output}");
    let (status, output) = machine.apply(&["-e", manifest]);
    assert_eq!(status, Some(0), "a second apply changes nothing: {output}");
    assert!(!output.contains("Warning"), "and has no warnings: {output}");
    assert_eq!(
        machine.again(&["status"]).0,
        Some(3),
        "and asks for nothing"
    );

    let noted = "/tmp/noted";
    let manifest = format!(
        "class {{ 'common::again': jitter => 0 }}\n\
         $then = $facts['again']['run'] ? {{ 1 => Exec['again'], default => undef }}\n\
         file {{ \"{noted}-${{facts['again']['run']}}\": content => inline_template('<%= require \"json\"; JSON.generate(@facts[\"again\"]) %>'), \
           notify => $then }}"
    );
    let site = "/tmp/site.pp";
    fs::write(site, manifest).expect("the manifest");
    let (status, output) = machine.apply(&[site]);
    assert_eq!(status, Some(2), "{output}");
    assert!(
        output.contains("Exec[again]/returns: again: scheduled: "),
        "{output}"
    );
    machine.settle();
    for run in [1, 2] {
        let text = fs::read_to_string(format!("{noted}-{run}")).expect("what the fact said");
        let fact: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let place = place();
        assert_eq!(
            fact["paths"],
            serde_json::json!({
                "agent_catalog_run_lockfile": format!("{}/agent_catalog_run.lock", place.statedir),
                "agent_disabled_lockfile": format!("{}/agent_disabled.lock", place.statedir),
                "lastrunfile": format!("{}/last_run_summary.yaml", place.publicdir),
                "pidfile": format!("{}/agent.pid", place.rundir),
            }),
            "run {run}"
        );
        assert_eq!(fact["run"], run);
    }
    let status = machine.status();
    let target = status["targets"]
        .as_array()
        .and_then(|all| all.iter().find(|target| !target["last"].is_null()))
        .unwrap_or_else(|| panic!("{status:#}"));
    assert_eq!(target["last"]["outcome"], "changed", "{status:#}");
}

/// A failure that passes: its first run fails, and with it the refresh of Exec['again'], the second has nothing to complain about.
pub fn fails_once(scratch: &Scratch) -> String {
    let root = scratch.root();
    let body = format!(
        "exec {{ 'fails once': command => ['/bin/sh', '-c', 'touch {root}/tried; false'], provider => 'posix', \
           creates => '{root}/tried', notify => Exec['again'] }}\n{}",
        changes_once(scratch, "Exec['again']")
    );
    scratch.manifest_with("on_failure => true,", &body)
}

#[test]
fn a_run_with_a_failure_is_run_again_if_the_class_says_so() {
    let scratch = scratch();
    scratch.write("work/site.pp", &fails_once(&scratch));
    let command = scratch.puppet_apply(&["site.pp", "--detailed-exitcodes"]);
    let (run, starts) = run_twice(&scratch, command, 6);
    assert!(
        run.out.contains(
            "/Common::Again::Requests/Again_on_failure[again-on-failure]: again: scheduled: "
        ),
        "{}",
        run.out
    );
    assert_eq!(starts[1].environment["AGAIN_TIMER"], "again-on-failure");
    assert_eq!(outcomes(&scratch), ["unchanged"]);
}

/// The fact is evaluated in every run: it costs little more than the start of a process, and the process' parts are few.
#[test]
fn the_fact_is_cheap_and_whole_without_the_helper() {
    let fact = text(repository().join("puppet-module/lib/facter/again.rb"));
    let script = text(repository().join("tests/matrix/fact.rb"));
    let again = std::env::var("AGAIN_BIN").expect("AGAIN_BIN");
    let bin = format!("AGAIN_BIN={again}");
    let measured = said(&plain(&[&bin, "ruby", "-W0", &script, &fact]));
    let lines: Vec<&str> = measured.1.lines().collect();
    let [cost, start, version, without, paths] = lines[..] else {
        panic!("{measured:?}")
    };
    println!(
        "{}: the fact {cost} ms, /bin/true {start} ms, without the helper {without} ms",
        place().name
    );
    assert_ne!(version, "nil", "the helper was asked");
    assert_eq!(paths, "4", "no path is lost without it");
    let number = |text: &str| text.parse::<f64>().expect("milliseconds");
    let (cost, start, without) = (number(cost), number(start), number(without));
    // 20 ms on a machine that has nothing else to do; what else is going on slows both down.
    assert!(
        cost < 20.0 || cost < 8.0 * start,
        "{cost} ms, and {start} ms for /bin/true"
    );
    assert!(cost < 200.0, "{cost} ms");
    assert!(without < cost.max(20.0), "{without} ms without the helper");
}
