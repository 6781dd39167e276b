use again_test_support::{LONG, Scratch, wait_until};

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

/// Behind `env`, a shell or a script, the driver sees which Puppet its command runs, and judges by that one's summary.
#[test]
fn puppet_behind_a_wrapper_is_judged_by_its_own_summary() {
    let scratch = Scratch::for_driver();
    let puppet = |manifest: &str, options: &str| {
        format!("{} {options}", scratch.driven_apply(manifest).join(" "))
    };
    let made = format!("file {{ '{}/made': content => 'x' }}", scratch.root());
    let detailed = "--detailed-exitcodes";
    for (manifest, options, through, status, said) in [
        (made.as_str(), detailed, "sh -c", 0, "run 1 changed"),
        (&made, "--test", "script", 0, "run 1 unchanged"),
        ("notify { 'n': }", "--test", "script", 0, "run 1 changed"),
        (
            "exec { '/bin/false': }",
            "",
            "sh -c",
            1,
            "1 resource failed",
        ),
        ("exec { '/bin/false': }", "", "env", 1, "1 resource failed"),
    ] {
        let puppet = puppet(manifest, options);
        let command = match through {
            "env" => format!("env X=1 {puppet}")
                .split(' ')
                .map(str::to_owned)
                .collect(),
            // The shell is not replaced by its last command.
            "sh -c" => ["sh", "-c", &format!("{puppet}; exit $?")]
                .map(str::to_owned)
                .to_vec(),
            _ => vec![scratch.script("setup", &format!("true\n{puppet}"))],
        };
        let ended = scratch.start(scratch.converge(&[], &command)).wait();
        assert_eq!(ended.status(), status, "{through} {puppet}: {ended:?}");
        assert!(ended.err.contains(said), "{said}: {}", ended.err);
    }
    scratch.is_clean();
}

/// Nothing tells then whether the run changed anything.
#[test]
fn wrapper_that_hides_how_a_disabled_agent_ended_is_not_clean() {
    let scratch = Scratch::for_driver();
    let conf = scratch.at("conf");
    let agent = format!("puppet agent --test --confdir {conf}");
    let words = ["agent", "--confdir", &conf, "--disable", "maintenance"];
    assert_eq!(scratch.run("puppet", &words).status(), 0);
    let command = ["sh", "-c", &format!("{agent} || true")].map(str::to_owned);
    let ended = scratch
        .start(scratch.converge(&["--until", "clean"], &command))
        .wait();
    assert_eq!(ended.status(), 1, "{ended:?}");
    assert!(ended.err.contains("nothing tells"), "{ended:?}");
    scratch.is_clean();
}

/// Exit status 2 is a success only of a Puppet that says by it that something changed.
#[test]
fn exit_status_2_without_a_summary_of_ones_own_is_a_failure() {
    let scratch = Scratch::for_driver();
    std::fs::create_dir(scratch.path("stub")).expect("a directory");
    let stub = scratch.script("stub/puppet", "exit 2");
    let words = [
        "apply",
        "--detailed-exitcodes",
        "--confdir",
        &scratch.at("conf"),
        "x.pp",
    ];
    let stub = std::iter::once(stub.as_str())
        .chain(words)
        .map(str::to_owned);
    let ended = scratch
        .start(scratch.converge(&[], &stub.collect::<Vec<_>>()))
        .wait();
    assert_eq!(ended.status(), 1, "{ended:?}");
    let other = ["sh", "-c", "exit 2"].map(str::to_owned);
    let ended = scratch.start(scratch.converge(&[], &other)).wait();
    assert_eq!(ended.status(), 1, "{ended:?}");
    scratch.is_clean();
}

/// As on first boot, when the server is not up yet: attempts without a catalog are made until there is one, and do not count.
#[test]
fn a_run_without_a_catalog_is_tried_again_until_there_is_one() {
    let scratch = Scratch::for_driver();
    let manifest = format!(
        "unless find_file('{}/ready') {{ fail('not yet') }}",
        scratch.root()
    );
    let apply = scratch.driven_apply(&manifest);
    let options = ["--retry", "1", "--timeout", "5m", "--max-runs", "1"];
    let driver = scratch.start(scratch.converge(&options, &apply));
    wait_until("two attempts", LONG, || {
        scratch.history_of("ended").len() >= 2
    });
    scratch.write("ready", "");
    let ended = driver.wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    let outcomes = scratch.history_of("ended");
    let (last, failed) = outcomes.split_last().expect("an end");
    assert_eq!(last["outcome"], "unchanged", "{last:#}");
    assert!(
        failed.iter().all(|one| one["outcome"] == "failed"),
        "{failed:#?}"
    );
    assert!(
        ended.err.contains("(no catalog was applied) starts in "),
        "{}",
        ended.err
    );
    // One that applied its catalog is not tried again, whatever became of it.
    let options = ["--retry", "1", "--timeout", "5m"];
    let apply = scratch.driven_apply("exec { '/bin/false': }");
    let ended = scratch.start(scratch.converge(&options, &apply)).wait();
    assert_eq!(ended.status(), 1, "{ended:?}");
    assert!(
        ended.err.contains("again: failed: run 1 failed (1 run in "),
        "{}",
        ended.err
    );
    // Nor for ever.
    let ended = scratch
        .start(scratch.converge(
            &["--retry", "1", "--timeout", "6"],
            &scratch.driven_apply("fail('never')"),
        ))
        .wait();
    assert_eq!(ended.status(), 75, "{ended:?}");
    let said = scratch.again(&["converge", "--retry", "1", "--", "true"]);
    assert_eq!(said.status(), 2, "{said:?}");
    assert!(said.err.contains("--timeout"), "{said:?}");
    scratch.is_clean();
}
