use crate::handover::counting;
use again_test_support::{LONG, Scratch, wait_until};
use nix::sys::signal::Signal;

/// As the first process of a pid namespace.
fn first_process(scratch: &Scratch, command: &[&str]) -> std::process::Command {
    let again = format!("{}/bin/again", scratch.root());
    let words = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        &again,
        "converge",
        "--",
    ];
    scratch.line(&[&words[..], command].concat())
}

#[test]
fn converge_runs_puppet_apply_as_the_first_process() {
    let scratch = Scratch::for_driver();
    let manifest = scratch.again_exec("again", &[])
        + &format!(
            "file {{ '{}/made': content => 'x', notify => Exec['again'] }}",
            scratch.root()
        );
    let apply = scratch.driven_apply(&manifest);
    let words: Vec<&str> = apply.iter().map(String::as_str).collect();
    let ended = scratch.start(first_process(&scratch, &words)).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert!(
        ended.out.contains("taken by 'again converge' (pid 1)"),
        "{}",
        ended.out
    );
    assert!(
        ended
            .err
            .contains("converged: nothing asks for more (2 runs")
    );
    scratch.is_clean();
}

#[test]
fn converge_as_the_first_process_reaps_orphans_and_ends_daemons() {
    let scratch = Scratch::for_driver();
    let command = counting(
        &scratch,
        "if [ $n = 1 ]; then\n  (sleep 0 & sleep 0 & setsid sleep 600 &) ; $AGAIN --delta 1\nelse\n  cat /proc/[0-9]*/stat > stats\nfi",
    );
    let ended = scratch.start(first_process(&scratch, &[&command])).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    let stats = scratch.text("stats");
    assert!(!stats.contains(") Z "), "{stats}");
    assert!(
        stats.contains("(sleep) S 1 "),
        "a daemon of the first run goes on: {stats}"
    );
    scratch.is_clean();
}

#[test]
fn converge_as_the_first_process_forwards_sigterm() {
    let scratch = Scratch::for_driver();
    let command = scratch.script(
        "x",
        "trap 'echo told >> told; exit 1' TERM; touch up; while :; do sleep 0.05; done",
    );
    let going = scratch.start(first_process(&scratch, &[&command]));
    wait_until("the run", LONG, || scratch.path("up").exists());
    // Its pid as seen from here: the child of unshare.
    let driver = scratch
        .processes()
        .into_iter()
        .find(|process| {
            let line = process.title();
            line.contains("again converge") && !line.starts_with("unshare")
        })
        .expect("the driver");
    driver.signal(Signal::SIGTERM).expect("it runs");
    let ended = going.wait();
    assert_eq!(ended.status(), 143, "{ended:?}");
    assert_eq!(scratch.text("told"), "told\n");
    scratch.is_clean();
}

/// A summary of another run in Puppet's usual place says nothing of a command that runs no Puppet.
#[test]
fn another_runs_summary_is_not_a_commands_own() {
    let scratch = Scratch::for_driver();
    std::fs::create_dir_all(scratch.path("cache/public")).expect("a directory");
    let failed = "version:\n  config: 1\nresources:\n  failed: 1\ntime:\n  catalog_application: 0.1\n  last_run: $(date +%s)\n";
    let command = scratch.script(
        "setup",
        &format!("printf \"{failed}\" > /var/cache/puppet/public/last_run_summary.yaml"),
    );
    let script = format!(
        "mkdir -p /var/cache/puppet && mount --bind '{}' /var/cache/puppet && exec '{}' converge -- '{command}'",
        scratch.at("cache"),
        scratch.at("bin/again"),
    );
    let words = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
    ];
    let ended = scratch.start(scratch.line(&words)).wait();
    assert!(
        scratch
            .text("cache/public/last_run_summary.yaml")
            .contains("failed: 1")
    );
    assert_eq!(ended.status(), 0, "{ended:?}");
    scratch.is_clean();
}
