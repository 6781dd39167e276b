//! The rig, before it may judge anything: each kind of run is recorded as it is. No `again` in here.

use std::fs;

use again_test_support::{
    CachedAgent, LONG, Permission, SHORT, Scratch, Server, permits, wait_for, wait_until,
};

#[test]
fn an_apply_is_recorded_at_its_start_and_in_its_catalog() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.bare_manifest("exec { '/bin/true': }");
    scratch
        .puppet_apply(&["-e", &manifest, "--tags", ""])
        .run()
        .expect(&[0]);

    let (starts, catalogs) = (scratch.starts(), scratch.catalogs());
    let ([start], [catalog]) = (&starts[..], &catalogs[..]) else {
        panic!("{starts:#?} {catalogs:#?}")
    };
    let conf = scratch.root() + "/puppet/conf";
    assert_eq!(
        start.command,
        [
            "/usr/bin/ruby",
            "/usr/bin/puppet",
            "apply",
            "--confdir",
            &conf,
            "-e",
            &manifest,
            "--tags",
            ""
        ]
    );
    assert_eq!(
        start.environment,
        scratch.environment().into_iter().collect()
    );
    assert_eq!(start.directory, scratch.path("work"));
    assert_eq!(
        (start.process, &start.raw_command),
        (catalog.process, &catalog.raw_command)
    );
    assert!(start.at < catalog.at && catalog.at < start.ended().expect("its end"));
    assert!(scratch.processes().is_empty());
}

#[test]
fn a_cached_agent_runs_once_and_as_a_daemon() {
    if !permits(Permission::MountNamespace) {
        return;
    }
    let scratch = Scratch::with_puppet();
    let agent = CachedAgent::new(
        &scratch,
        &scratch.bare_manifest("exec { '/bin/true': }"),
        "runinterval = 3",
    );
    agent.command(&["--test"]).run().expect(&[2]);
    assert_eq!(scratch.catalogs().len(), 1);

    let daemon = agent.plain().start().wait();
    let daemon_process = wait_for("the daemon", SHORT, || agent.daemon());
    assert_ne!(daemon.process, daemon_process, "a plain agent forks");
    wait_until("two runs of the daemon", LONG, || {
        scratch.catalogs().len() >= 3
    });
    let run = &scratch.catalogs()[1];
    assert_eq!(
        run.stat(4),
        i64::from(daemon_process.pid),
        "a run is a child of the daemon"
    );
    assert!(
        run.command[0].starts_with("puppet agent: applying configuration"),
        "{:?}",
        run.command
    );
    assert!(
        run.raw_environment.iter().all(|byte| *byte == 0),
        "the title has wiped out the environment"
    );
    assert_eq!(
        daemon_process.command(),
        ["/usr/bin/ruby", "/usr/bin/puppet", "agent"]
    );
    daemon_process.end();
    scratch
        .processes()
        .iter()
        .for_each(|process| process.wait_until_gone(SHORT));
}

#[test]
fn an_agent_gets_its_catalog_from_the_server() {
    let scratch = Scratch::with_puppet();
    let manifest = scratch.bare_manifest(&format!(
        "file {{ '{}/made': content => 'x' }}",
        scratch.root()
    ));
    let agent = Server::get().enrol(&scratch, "rigitself", &manifest, "");
    agent.command(&["--test"]).run().expect(&[2]);
    assert_eq!(
        fs::read_to_string(scratch.path("made")).expect("the file"),
        "x"
    );
    assert_eq!(scratch.catalogs().len(), 1);
}
