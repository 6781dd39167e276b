use std::fs;
use std::time::{Duration, Instant};

use crate::quick::{fact, noted_fact};
use again_test_support::place::{Machine, outcomes, place, plain, run_twice, said, scratch};
use again_test_support::{changes_once, repository, text};

#[test]
fn a_delta_is_never_early() {
    let scratch = scratch();
    let body = format!(
        "common::again::delta {{ 'two': delta => '2' }}\n{}",
        changes_once(&scratch, "Common::Again::Delta['two']")
    );
    scratch.write("work/site.pp", &scratch.manifest(&body));
    let (_, starts) = run_twice(&scratch, scratch.puppet_apply(&["site.pp"]), 0);
    let after = starts[1].at - starts[0].ended().expect("the end of the first run");
    assert!((2.0..60.0).contains(&after), "{after:.3} s after the run");
    assert_eq!(starts[1].environment["AGAIN_TIMER"], "two");
    assert_eq!(outcomes(&scratch), ["unchanged"]);
}

/// As a user who is not root, in that user's default directories.
#[test]
fn another_users_run_is_run_again_as_that_user() {
    let scratch = scratch();
    let root = scratch.root();
    let body = changes_once(&scratch, "Exec['again']") + "\n" + &noted_fact(&scratch);
    scratch.write("work/site.pp", &scratch.manifest(&body));
    // The repository may lie where that user may not look.
    let common = scratch.path("modules/common");
    fs::remove_file(&common).expect("the link to the module");
    again_test_support::copy_tree(&repository().join("puppet-module"), &common);
    let (status, output) = said(&plain(&["chown", "-R", "nobody:nogroup", &root]));
    assert_eq!(status, Some(0), "{output}");
    let modules = text(scratch.path("modules"));
    let command = scratch.prepare(&[
        "setpriv",
        "--reuid=nobody",
        "--regid=nogroup",
        "--clear-groups",
        "puppet",
        "apply",
        "--modulepath",
        &modules,
        "site.pp",
    ]);
    let (_, starts) = run_twice(&scratch, command, 0);
    let user = starts[0].status("Uid");
    assert!(!user.starts_with('0'), "{user}");
    assert_eq!(starts[1].status("Uid"), user);
    let users = &place().users;
    for run in [1, 2] {
        assert_eq!(
            fact(&scratch, run)["paths"],
            serde_json::json!({
                "agent_catalog_run_lockfile": format!("{root}/home/{}/agent_catalog_run.lock", users.statedir),
                "agent_disabled_lockfile": format!("{root}/home/{}/agent_disabled.lock", users.statedir),
                "lastrunfile": format!("{root}/home/{}/last_run_summary.yaml", users.publicdir),
                "pidfile": format!("{root}/home/{}/agent.pid", users.rundir),
            })
        );
        assert_eq!(fact(&scratch, run)["run"], run);
    }
    // Seen by root, who leaves the history to its owner.
    let status = scratch.status();
    assert_eq!(
        status["targets"][0]["last"]["outcome"], "changed",
        "{status:#}"
    );
}

/// The original's own two examples, with its resources and parameters.
#[test]
fn the_originals_examples_run_twice() {
    let machine = Machine::get();
    assert_eq!(machine.drop_in("again", "120"), 2);
    assert_eq!(machine.timers_that_ran(), ["again"]);
    let began = Instant::now();
    assert_eq!(machine.drop_in("delta", "3"), 2);
    assert_eq!(machine.timers_that_ran(), ["delta-timer"]);
    assert!(began.elapsed() > Duration::from_secs(3));
}
