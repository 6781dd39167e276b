use again_rig::Scratch;

/// A manifest of five steps; each step but the last asks for another run.
fn five_steps(scratch: &Scratch) -> String {
    let root = scratch.root();
    let mut text = scratch.again_exec("again", &[]);
    text += &scratch.again_exec("peers", &["--delta", "2", "--name", "peers"]);
    text += &format!(
        "$step = find_file('{root}/step') ? {{ undef => 0, default => Integer(strip(file('{root}/step'))) }}\n\
         if $step < 4 {{\n  file {{ '{root}/step':\n    content => \"${{$step + 1}}\\n\",\n    \
         notify  => $step ? {{ 1 => Exec['peers'], default => Exec['again'] }},\n  }}\n}}\n"
    );
    text
}

#[test]
fn a_manifest_that_needs_five_runs_gets_them() {
    let scratch = Scratch::for_driver();
    let manifest = five_steps(&scratch);
    let ended = scratch
        .start(scratch.converge(&[], &scratch.driven_apply(&manifest)))
        .wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert_eq!(scratch.text("step").trim(), "4");
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
    let (starts, ends) = (scratch.history_of("started"), scratch.history_of("ended"));
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
    assert_eq!(scratch.history_of("requested").len(), 4);
    assert_eq!(scratch.history_of("closed").len(), 1);
    scratch.is_clean();
}

#[test]
fn one_that_never_settles_meets_the_cap() {
    let scratch = Scratch::for_driver();
    let manifest =
        scratch.again_exec("again", &[]) + "notify { 'always': notify => Exec['again'] }";
    let command = scratch.converge(&["--max-runs", "2"], &scratch.driven_apply(&manifest));
    let ended = scratch.start(command).wait();
    assert_eq!(ended.status(), 75, "{ended:?}");
    assert_eq!(scratch.history_of("started").len(), 2);
    assert!(
        ended
            .err
            .contains("not converged: the cap of 2 runs is reached, still asked for by 'again'")
    );
    scratch.is_clean();
}

#[test]
fn a_failure_is_told_by_the_summary_and_its_output_is_seen() {
    let scratch = Scratch::for_driver();
    // Without --detailed-exitcodes Puppet exits with 0.
    let ended = scratch
        .start(scratch.converge(&[], &scratch.driven_apply("exec { '/bin/false': }")))
        .wait();
    assert_eq!(ended.status(), 1, "{ended:?}");
    assert!(format!("{}{}", ended.out, ended.err).contains("/bin/false"));
    assert!(ended.err.contains("again: failed: run 1 failed (1 run in "));
    assert!(ended.err.contains("1 resource failed"));
    // A catalog that does not compile leaves the old summary in place.
    let ended = scratch
        .start(scratch.converge(&[], &scratch.driven_apply("fail('on purpose')")))
        .wait();
    assert_eq!(ended.status(), 1, "{ended:?}");
    assert!(ended.err.contains("run 1 failed after"));
    assert!(ended.err.contains("(exit status 1)"), "{}", ended.err);
    scratch.is_clean();
}

#[test]
fn until_clean_runs_until_nothing_changes() {
    let scratch = Scratch::for_driver();
    let manifest = format!("file {{ '{}/made': content => 'x' }}", scratch.root());
    let ended = scratch
        .start(scratch.converge(&["--until", "clean"], &scratch.driven_apply(&manifest)))
        .wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    let outcomes: Vec<String> = scratch
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
    scratch.is_clean();
}

#[test]
fn a_bare_notify_never_is_clean() {
    let scratch = Scratch::for_driver();
    let mut apply = scratch.driven_apply("notify { 'bare': }");
    apply.push("--detailed-exitcodes".into());
    let command = scratch.converge(&["--until", "clean", "--max-runs", "2"], &apply);
    let ended = scratch.start(command).wait();
    assert_eq!(ended.status(), 75, "{ended:?}");
    assert!(ended.err.contains("the last run changed something"));
    let help = scratch.again(&["converge", "--help"]).out;
    assert!(help.contains("bare notify is never clean"), "{help}");
    scratch.is_clean();
}

#[test]
fn a_wrapper_around_puppet_is_run_again_as_a_whole() {
    let scratch = Scratch::for_driver();
    let apply = scratch.driven_apply(&five_steps(&scratch)).join(" ");
    scratch.write("step", "3\n");
    let wrapper = scratch.script(
        "wrapper",
        &format!("echo wrapped >> wrapped\ntimeout 100 sh -c '{apply}; exit $?'"),
    );
    let ended = scratch.start(scratch.converge(&[], &[wrapper])).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert_eq!(scratch.text("wrapped"), "wrapped\nwrapped\n");
    // Where the summary is became known by the request.
    assert!(ended.err.contains("run 2 unchanged"), "{}", ended.err);
    scratch.is_clean();
}
