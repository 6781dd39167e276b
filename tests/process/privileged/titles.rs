use again_test_support::{Scratch, in_namespaces, pass_a_tick, start};

use crate::origin::{TITLES, ask_well, daemon, of, this_run, triggers};

/// No other daemons exist, of which a run without its daemon could be considered a run.
#[test]
fn status_finds_the_trigger_of_an_agent_run_under_a_title() {
    in_namespaces(
        &["--pid", "--mount-proc", "--fork", "--kill-child"],
        "privileged::titles::status_finds_the_trigger_of_an_agent_run_under_a_title",
        under_a_title,
    );
}

fn under_a_title() {
    let scratch = Scratch::new();
    let daemon = daemon(&scratch);
    scratch.release("daemon");
    daemon.finish();
    // The last title does not look like a run.
    ask_well(&scratch, &[("web1", 9)], 3_600_000, 0);
    pass_a_tick();
    for (name, title) in ["bundled", "orphan"].into_iter().zip(TITLES) {
        let manifest =
            format!("{title}; ask('status', '--json'); $0 += ' --noop'; ask('status', '--json')");
        start(&mut scratch.agent(name, &manifest)).finish();
        let run = &scratch.runs(name)[0];
        let this = this_run(run, 0);
        assert_eq!(triggers(&this["origin"]), of(&[("web1", 9)]), "{this:#}");
        assert!(
            this["target"].is_null() && this["noop"].is_null(),
            "{this:#}"
        );
        let noop = &this_run(run, 1)["noop"];
        assert_eq!(*noop == "--noop", name == "bundled", "{noop}");
    }
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}
