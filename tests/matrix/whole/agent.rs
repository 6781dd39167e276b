use std::fs;

use crate::quick::{assert_facts, noted_fact};
use again_test_support::place::{Machine, outcomes, place, run_and_rerun, run_twice, scratch};
use again_test_support::{
    CachedAgent, LOCK_WAIT, LONG, SHORT, Server, assert_same_circumstances, boottime, changes_once,
    hold_until, search_path, text, wait_for, wait_until,
};

/// A node's name in this place: two places share a server, and a name has one certificate on it.
fn node(name: &str) -> String {
    name.to_owned() + &place().name.replace('-', "")
}

/// The fact comes by pluginsync, and so does the type of `on_failure`; the catalog is compiled anew for each run.
#[test]
fn a_test_run_against_a_server_is_run_again_and_the_fact_is_right() {
    let scratch = scratch();
    let body = changes_once(&scratch, "Exec['again']") + "\n" + &noted_fact(&scratch);
    let manifest = scratch.manifest(&body);
    let agent = Server::get().enrol(&scratch, &node("testrun"), &manifest, "");
    run_twice(&scratch, agent.command(&["--test"]), 2);
    assert_facts(&scratch);
    assert_eq!(outcomes(&scratch), ["changed"]);
}

/// A run's command line with these words more, and those that each rerun of the agent has.
fn added(line: &[String], words: &[&str]) -> Vec<String> {
    let words = words
        .iter()
        .chain(&LOCK_WAIT)
        .map(|word| (*word).to_owned());
    line.iter().cloned().chain(words).collect()
}

#[test]
fn a_onetime_run_against_a_server_is_run_again_without_its_splay() {
    let scratch = scratch();
    let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
    let agent = Server::get().enrol(&scratch, &node("onetime"), &manifest, "splaylimit = 1");
    let command = agent.command(&["--onetime", "--no-daemonize", "--splay", "--verbose"]);
    let (_, starts) = run_and_rerun(&scratch, command, 0);
    assert_same_circumstances(&starts[0], &starts[1]);
    assert_eq!(
        starts[1].command,
        added(&starts[0].command, &["--no-splay"])
    );
    assert_eq!(outcomes(&scratch), ["unchanged"]);
}

/// A daemon that gets its catalogs from a server, with the fact in the rerun.
#[test]
fn a_daemons_run_against_a_server_is_run_again() {
    let scratch = scratch();
    let body = changes_once(&scratch, "Exec['again']") + "\n" + &noted_fact(&scratch);
    let manifest = scratch.manifest(&body);
    let agent = Server::get().enrol(&scratch, &node("daemon"), &manifest, "runinterval = 3600");
    let daemon = agent.command(&["--no-daemonize"]).start();
    wait_until("the rerun", LONG, || scratch.catalogs().len() == 2);
    wait_until("its end", LONG, || {
        scratch.agains().is_empty() && scratch.processes() == [daemon.process]
    });
    let starts = scratch.starts();
    assert_eq!(
        starts[1].command,
        added(&starts[0].command, &["--onetime", "--no-splay"])
    );
    assert_facts(&scratch);
    assert!(daemon.process.alive());
    daemon.stop();
    scratch.settle(LONG);
}

/// The rerun's catalog does not compile: Puppet's summary counts no failure at all, and yet it is one.
#[test]
fn a_catalog_that_does_not_compile_is_told_as_failed() {
    let scratch = scratch();
    let body = format!(
        "if $facts['again']['run'] == 2 {{ fail('not in run two') }}\n{}",
        changes_once(&scratch, "Exec['again']")
    );
    let manifest = scratch.manifest(&body);
    let agent = Server::get().enrol(
        &scratch,
        &node("nocatalog"),
        &manifest,
        "usecacheonfailure = false",
    );
    agent
        .command(&["--onetime", "--no-daemonize"])
        .run()
        .expect(&[0]);
    scratch.settle(LONG);
    let summary = fs::read_to_string(scratch.path("puppet/public/last_run_summary.yaml"))
        .expect("the summary");
    assert_eq!(
        outcomes(&scratch),
        ["failed"],
        "{} wrote {summary}\n{:#?}",
        place().name,
        scratch.history_of("ended")
    );
}

/// `apply` that does not compile leaves the summary of the run before: nothing can be told of the rerun, least of all a success.
#[test]
fn an_apply_that_does_not_compile_is_not_told_as_a_success() {
    let scratch = scratch();
    let body = format!(
        "if $facts['again']['run'] == 2 {{ fail('not in run two') }}\n{}",
        changes_once(&scratch, "Exec['again']")
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 2);
    let told = outcomes(&scratch);
    assert!(
        told == ["unknown"] || told == ["failed"],
        "{:#?}",
        scratch.history_of("ended")
    );
    println!("{}: such an apply is {told:?}", place().name);
}

/// A timer that is due while another run of the agent has the lock: the rerun comes when that run has ended.
#[test]
fn the_agents_lock_is_waited_for() {
    let scratch = scratch();
    let root = scratch.root();
    let agent = CachedAgent::new(&scratch, "", "");
    let hold =
        agent.compile(&scratch.bare_manifest(&hold_until("hold", &text(scratch.path("go")))));
    let ask = agent.compile(&scratch.bare_manifest(&format!(
        "exec {{ 'ask': command => ['{root}/bin/again', 'run', '--delta', '20'] }}"
    )));
    agent.cache(&ask);
    agent
        .command(&["--onetime", "--no-daemonize"])
        .run()
        .expect(&[0]);
    let due = boottime() + 20.0;
    agent.cache(&hold);
    let holder = agent.command(&["--test"]).start();
    wait_until("the lock", LONG, || {
        fs::read_to_string(agent.lock()).is_ok_and(|pid| pid == holder.process.pid.to_string())
    });
    assert!(boottime() < due, "this machine is too slow for the test");
    wait_until("the timer to be due", SHORT, || boottime() > due + 1.0);
    let state = wait_for("one timer", SHORT, || scratch.timers().first().cloned());
    assert_eq!(scratch.starts().len(), 2, "{state:#}");
    agent.catalog(&scratch.bare_manifest(""));
    fs::write(scratch.path("go"), "").expect("go");
    let holder_process = holder.process;
    let _ = holder.wait();
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!((starts.len(), scratch.catalogs().len()), (3, 3));
    assert!(
        !starts[2]
            .earlier
            .iter()
            .any(|(pid, running)| *pid == holder_process.pid && *running),
        "the holder had ended"
    );
    assert!(
        scratch
            .logs()
            .iter()
            .all(|(_, log)| !log.contains("already in progress"))
    );
}

/// Disables the agent within its own first run, while the timer still waits for that run: nothing depends on how fast anything is.
fn disables(options: &str, once: &str) -> String {
    format!(
        "exec {{ 'disable': command => ['/bin/sh', '-c', 'puppet agent {options} --disable \"a change freeze\" && touch {once}'], \
           provider => 'posix', path => '{}', creates => '{once}', timeout => 300, require => Common::Again::Delta['soon'] }}",
        search_path()
    )
}

/// `puppet agent --disable` holds a timer, `--enable` lets it go, in this Puppet's own words and files.
#[test]
fn a_disabled_agent_holds_its_timer() {
    let scratch = scratch();
    let conf = format!("--confdir {}", text(scratch.path("puppet/conf")));
    let manifest = scratch.manifest(&format!(
        "common::again::delta {{ 'soon': delta => 1 }}\n{}\n{}",
        changes_once(&scratch, "Common::Again::Delta['soon']"),
        disables(&conf, &text(scratch.path("disabled")))
    ));
    let agent = CachedAgent::new(&scratch, &manifest, "");
    agent.command(&["--test"]).run().expect(&[2]);
    assert!(agent.disabled().exists());
    wait_until("the timer to be held, with the reason", SHORT, || {
        let timers = scratch.timers();
        matches!(&timers[..], [timer] if timer.to_string().contains("a change freeze"))
    });
    assert_eq!(scratch.catalogs().len(), 1);
    agent.command(&["--enable"]).run().expect(&[0]);
    wait_until("the rerun", LONG, || scratch.catalogs().len() == 2);
    scratch.settle(LONG);
}

/// The cap, by the module's own settings, in an agent.
#[test]
fn the_cap_ends_a_loop_of_the_agent() {
    let scratch = scratch();
    scratch.settings("max_runs = 2");
    let manifest = scratch.manifest("exec { '/bin/true': notify => Exec['again'] }");
    let agent = CachedAgent::new(&scratch, &manifest, "");
    agent.command(&["--test"]).run().expect(&[2]);
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1 + 2);
    let logs = scratch.logs();
    let last = &logs.last().expect("a log").1;
    assert!(
        last.contains("again: refused: the cap is reached: 2 of at most 2 reruns within 1h"),
        "{last}"
    );
    assert_eq!(outcomes(&scratch), ["changed", "failed"]);
}

/// In the default directories of this layout, which the helper has to find by itself: the catalog was compiled without the fact.
#[test]
fn an_agent_as_it_comes() {
    let machine = Machine::get();
    let (status, output) = machine.apply(&["-e", "include common::again"]);
    assert!(matches!(status, Some(0 | 2)), "{output}");
    machine.cached_agent(&format!(
        "class {{ 'common::again': manage_binary => 'none', binary => '/usr/local/bin/again', manage_config => false,
           manage_boot_unit => false }}
         common::again::delta {{ 'soon': delta => 1 }}
         file {{ '/tmp/made': content => 'x', notify => Common::Again::Delta['soon'] }}
         {}",
        disables("", "/tmp/disabled")
    ));
    let (status, output) = machine.agent(&["--test"]);
    assert_eq!(status, Some(2), "{output}");
    assert_eq!(output.matches("again: scheduled: ").count(), 1, "{output}");
    let target = || {
        let status = machine.status();
        let targets = status["targets"].as_array().expect("targets");
        let agents = |target: &&serde_json::Value| target["kind"] == "agent";
        targets.iter().find(agents).cloned().expect("the agent")
    };
    wait_until("the timer to be held", SHORT, || {
        target()["timers"][0]
            .to_string()
            .contains("a change freeze")
    });
    let (status, output) = machine.agent(&["--enable"]);
    assert_eq!(status, Some(0), "{output}");
    machine.settle();
    let last = &target()["last"];
    assert_eq!(last["outcome"], "unchanged", "{last:#}");
    assert!(
        last["evidence"]
            .as_str()
            .is_some_and(|evidence| evidence.contains(place().publicdir)),
        "{last:#}"
    );
}
