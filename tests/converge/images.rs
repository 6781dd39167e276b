use crate::handover::counting;
use crate::room::{Room, wait_until};

/// As the first process of a pid namespace.
fn first_process(room: &Room, command: &[&str]) -> std::process::Command {
    let again = format!("{}/again", room.root());
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
    room.command(&[&words[..], command].concat())
}

#[test]
fn a_real_apply_converges_as_a_containers_command() {
    let room = Room::new();
    let manifest = room.again_exec("again", &[])
        + &format!(
            "file {{ '{}/made': content => 'x', notify => Exec['again'] }}",
            room.root()
        );
    let apply = room.apply(&manifest);
    let words: Vec<&str> = apply.iter().map(String::as_str).collect();
    let ended = room.start(first_process(&room, &words)).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
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
    room.is_clean();
}

#[test]
fn it_reaps_what_is_orphaned_and_nothing_survives_it() {
    let room = Room::new();
    let command = counting(
        &room,
        "if [ $n = 1 ]; then\n  (sleep 0 & sleep 0 & setsid sleep 600 &) ; $AGAIN --delta 1\nelse\n  cat /proc/[0-9]*/stat > stats\nfi",
    );
    let ended = room.start(first_process(&room, &[&command])).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    let stats = room.read("stats");
    assert!(!stats.contains(") Z "), "{stats}");
    assert!(
        stats.contains("(sleep) S 1 "),
        "a daemon of the first run goes on: {stats}"
    );
    room.is_clean();
}

#[test]
fn it_passes_term_on_and_ends() {
    let room = Room::new();
    let command = room.script(
        "x",
        "trap 'echo told >> told; exit 1' TERM; touch up; while :; do sleep 0.05; done",
    );
    let going = room.start(first_process(&room, &[&command]));
    wait_until("the run", || room.path("up").exists());
    // Its pid as seen from here: the child of unshare.
    let driver = room
        .processes()
        .into_iter()
        .find(|(_, line)| line.contains("again converge") && !line.starts_with("unshare"))
        .expect("the driver")
        .0;
    let sent = std::process::Command::new("kill")
        .args(["-TERM", &driver.to_string()])
        .status();
    assert!(sent.expect("kill").success());
    let ended = going.wait();
    assert_eq!(ended.status, 143, "{ended:?}");
    assert_eq!(room.read("told"), "told\n");
    room.is_clean();
}

#[test]
fn a_script_with_set_e_stops_where_it_has_to() {
    let room = Room::new();
    let command = counting(&room, "[ $n -ge 2 ] || $AGAIN");
    let build = room.script(
        "build",
        &format!("set -e\n$AGAIN converge -- {command}\necho converged\n$AGAIN converge --max-runs 1 -- $AGAIN\necho not reached"),
    );
    let ended = room.start(room.command(&[&build])).wait();
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(ended.out.contains("converged\n"));
    assert!(!ended.out.contains("not reached"));
    room.is_clean();
}
