use crate::handover::counting;
use again_rig::{LONG, Scratch, wait_until};
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
fn a_real_apply_converges_as_a_containers_command() {
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
fn it_reaps_what_is_orphaned_and_nothing_survives_it() {
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
fn it_passes_term_on_and_ends() {
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

#[test]
fn a_script_with_set_e_stops_where_it_has_to() {
    let scratch = Scratch::for_driver();
    let command = counting(&scratch, "[ $n -ge 2 ] || $AGAIN");
    let build = scratch.script(
        "build",
        &format!("set -e\n$AGAIN converge -- {command}\necho converged\n$AGAIN converge --max-runs 1 -- $AGAIN\necho not reached"),
    );
    let ended = scratch.start(scratch.line(&[&build])).wait();
    assert_eq!(ended.status(), 75, "{ended:?}");
    assert!(ended.out.contains("converged\n"));
    assert!(!ended.out.contains("not reached"));
    scratch.is_clean();
}
