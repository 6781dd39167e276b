use crate::room::Room;

/// A manifest of five steps; each step but the last asks for another run.
fn five_steps(room: &Room) -> String {
    let root = room.root();
    let mut text = room.again_exec("again", &[]);
    text += &room.again_exec("peers", &["--delta", "2", "--name", "peers"]);
    text += &format!(
        "$step = find_file('{root}/step') ? {{ undef => 0, default => Integer(strip(file('{root}/step'))) }}\n\
         if $step < 4 {{\n  file {{ '{root}/step':\n    content => \"${{$step + 1}}\\n\",\n    \
         notify  => $step ? {{ 1 => Exec['peers'], default => Exec['again'] }},\n  }}\n}}\n"
    );
    text
}

#[test]
fn a_manifest_that_needs_five_runs_gets_them() {
    let room = Room::new();
    let manifest = five_steps(&room);
    let ended = room
        .start(room.converge(&[], &room.apply(&manifest)))
        .wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(room.read("step").trim(), "4");
    assert!(
        ended
            .out
            .contains("scheduled: taken by 'again converge' (pid ")
    );
    let last = ended.err.lines().last().expect("a last line");
    assert!(
        last.starts_with("again: converged: nothing asks for more (5 runs in "),
        "{last}"
    );
    let rows = ended
        .err
        .lines()
        .filter(|line| line.starts_with("    "))
        .count();
    assert_eq!(rows, 5, "{}", ended.err);
    // Never early: each run starts at or after the end of the one before, and delta.
    let at = |entry: &serde_json::Value| entry["at"]["uptime"].as_u64().expect("a time");
    let (starts, ends) = (room.history_of("started"), room.history_of("ended"));
    assert_eq!((starts.len(), ends.len()), (5, 5));
    for (start, end) in starts[1..].iter().zip(&ends) {
        let delta = if start["timer"] == "peers" {
            2_000_000_000
        } else {
            0
        };
        assert!(at(start) >= at(end) + delta, "{start} {end}");
    }
    let numbers: Vec<u64> = starts.iter().filter_map(|s| s["run"].as_u64()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert!(
        starts
            .iter()
            .all(|start| start["chain"] == starts[0]["chain"])
    );
    assert_eq!(room.history_of("requested").len(), 4);
    assert_eq!(room.history_of("closed").len(), 1);
    room.is_clean();
}

#[test]
fn one_that_never_settles_meets_the_cap() {
    let room = Room::new();
    let manifest = room.again_exec("again", &[]) + "notify { 'always': notify => Exec['again'] }";
    let command = room.converge(&["--max-runs", "2"], &room.apply(&manifest));
    let ended = room.start(command).wait();
    assert_eq!(ended.status, 75, "{ended:?}");
    assert_eq!(room.history_of("started").len(), 2);
    assert!(
        ended
            .err
            .contains("not converged: the cap of 2 runs is reached, still asked for by 'again'")
    );
    room.is_clean();
}

#[test]
fn a_failure_is_told_by_the_summary_and_its_output_is_seen() {
    let room = Room::new();
    // Without --detailed-exitcodes Puppet exits with 0.
    let ended = room
        .start(room.converge(&[], &room.apply("exec { '/bin/false': }")))
        .wait();
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(format!("{}{}", ended.out, ended.err).contains("/bin/false"));
    assert!(ended.err.contains("again: failed: run 1 failed (1 run in "));
    assert!(ended.err.contains("1 resource failed"));
    // A catalog that does not compile leaves the old summary in place.
    let ended = room
        .start(room.converge(&[], &room.apply("fail('on purpose')")))
        .wait();
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(ended.err.contains("run 1 failed after"));
    assert!(ended.err.contains("(exit status 1)"), "{}", ended.err);
    room.is_clean();
}

#[test]
fn until_clean_runs_until_nothing_changes() {
    let room = Room::new();
    let manifest = format!("file {{ '{}/made': content => 'x' }}", room.root());
    let ended = room
        .start(room.converge(&["--until", "clean"], &room.apply(&manifest)))
        .wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    let outcomes: Vec<String> = room
        .history_of("ended")
        .iter()
        .map(|entry| format!("{}: {}", entry["outcome"], entry["reason"]))
        .collect();
    assert_eq!(
        outcomes,
        [
            r#""changed": "1 resource changed""#,
            r#""unchanged": "no resource changed""#
        ]
    );
    assert!(ended.err.contains("--until clean"));
    room.is_clean();
}

#[test]
fn a_bare_notify_never_is_clean() {
    let room = Room::new();
    let mut apply = room.apply("notify { 'bare': }");
    apply.push("--detailed-exitcodes".into());
    let command = room.converge(&["--until", "clean", "--max-runs", "2"], &apply);
    let ended = room.start(command).wait();
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(ended.err.contains("the last run changed something"));
    let help = room.again(&["converge", "--help"]).out;
    assert!(help.contains("bare notify never is clean"), "{help}");
    room.is_clean();
}

#[test]
fn a_wrapper_around_puppet_is_run_again_as_a_whole() {
    let room = Room::new();
    let apply = room.apply(&five_steps(&room)).join(" ");
    room.write("step", "3\n");
    let wrapper = room.script(
        "wrapper",
        &format!("echo wrapped >> wrapped\ntimeout 100 sh -c '{apply}; exit $?'"),
    );
    let ended = room.start(room.converge(&[], &[wrapper])).wait();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(room.read("wrapped"), "wrapped\nwrapped\n");
    // Where the summary is became known by the request.
    assert!(ended.err.contains("run 2 unchanged"), "{}", ended.err);
    room.is_clean();
}
