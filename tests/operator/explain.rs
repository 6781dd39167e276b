use again_test_support::Scratch;

/// A puppet that explains itself from inside, and stays for a look from outside.
const LOOK: &str =
    "$AGAIN explain $(cat $HERE/options)\nuntil test -e $HERE/go; do sleep 0.02; done\n";

#[test]
fn from_inside_and_from_outside_it_says_the_same_and_changes_nothing() {
    let mut scratch = Scratch::for_operator();
    scratch.write("options", "--delta 90s --jitter 10s");
    let pid = scratch.begin_shell(LOOK);
    again_test_support::wait_for("the run to be there", again_test_support::SHORT, || {
        scratch.text("out").contains("verdict").then_some(())
    });
    let inside = scratch.text("out");
    let outside = scratch
        .again(&[
            "explain",
            "--pid",
            &pid.to_string(),
            "--delta",
            "90s",
            "--jitter",
            "10s",
        ])
        .ok();
    scratch.write("go", "");
    scratch.end_shell();
    // From outside the nearest process is the run itself.
    let plan = |text: &str| text[text.find("target: ").expect("a plan")..].to_owned();
    assert_eq!(plan(&inside), plan(&outside));
    for line in [
        "  the same command line as the run's\n".to_owned(),
        format!("  its time: 1m30s and up to 10s of jitter, after the run has ended (pid {pid})\n"),
        "  the cap: 0 of 10 reruns within 1h used\n".to_owned(),
        "  again disable: it is not in force\n".to_owned(),
        "verdict: would be scheduled\n".to_owned(),
    ] {
        assert!(inside.contains(&line), "{line}: {inside}");
    }
    assert!(
        inside
            .lines()
            .any(|l| l.contains(&format!("  {pid} ruby ")) && l.ends_with("<- the run")),
        "{inside}"
    );
    let why =
        "\nthe run: its command line is that of puppet apply, and nothing nearer is a puppet run\n";
    assert!(inside.contains(why) && outside.contains(why), "{inside}");
    assert_eq!(scratch.again(&["status"]).status(), 3);
    assert!(!scratch.path("state/targets").exists());
}

#[test]
fn says_what_it_would_add_and_why() {
    let scratch = Scratch::for_operator();
    scratch.write("options", "");
    scratch.write("go", "");
    scratch.write_shell("site.pp", LOOK);
    let words = [
        "bin/puppet",
        "agent",
        "--onetime",
        "--daemonize",
        "--splay",
        "site.pp",
    ];
    let said = scratch.run("ruby", &words);
    for line in [
        "  taken away --daemonize: a rerun stays in the foreground",
        "  added --no-daemonize: it would go to the background",
        "  added --no-splay: it would wait at random once more, after our own jitter",
        "  added --waitforlock=10: it would be skipped if another run took the lock meanwhile",
        "  added --maxwaitforlock=unlimited: it would give up after a minute",
    ] {
        assert!(said.out.contains(line), "{line}: {said:?}");
    }
}

/// An agent's lock that another run holds, and an agent that is disabled: what would be waited for, and that it is not now.
#[test]
fn says_what_would_be_waited_for() {
    let mut scratch = Scratch::for_operator();
    let holder = scratch.begin_shell("until test -e $HERE/end; do sleep 0.02; done\n");
    scratch.write("lock", &holder.to_string());
    let words = [
        "explain",
        "--agent-catalog-run-lockfile",
        "lock",
        "--agent-disabled-lockfile",
        "off",
    ];
    scratch.write_shell("agent.pp", &format!("$AGAIN {}\n", words.join(" ")));
    let explain = || {
        let said = scratch.run("ruby", &["bin/puppet", "agent", "--onetime", "agent.pp"]);
        assert_eq!(said.status(), 0, "{said:?}");
        said.out
    };
    let said = explain();
    let lock = scratch.path("lock").display().to_string();
    let off = scratch.path("off").display().to_string();
    assert!(
        said.contains(&format!(
            "  the agent's lock: held by pid {holder} ({lock})\n"
        )),
        "{said}"
    );
    assert!(!said.contains("puppet agent --enable"), "{said}");
    scratch.write("off", "{\"disabled_message\":\"new switches\"}");
    let said = explain();
    assert!(
        said.contains(&format!(
            "  puppet agent --enable: it is disabled, \"new switches\" ({off})\n"
        )),
        "{said}"
    );
    assert!(said.contains("verdict: would be scheduled\n"), "{said}");
    scratch.write("end", "");
    let _ = said;
    scratch.end_shell();
    let said = scratch.run("ruby", &["bin/puppet", "agent", "--onetime", "agent.pp"]);
    assert!(
        said.out
            .contains(&format!("  the agent's lock: not held ({lock})\n")),
        "{said:?}"
    );
}

#[test]
fn says_what_would_refuse() {
    let mut scratch = Scratch::for_operator();
    scratch.write("options", "--max-runs 0");
    scratch.write("go", "");
    scratch.again(&["disable", "why"]).ok();
    let said = scratch.shell(LOOK);
    assert!(
        said.contains("  the cap: 0 of 0 reruns within 1h used; reached"),
        "{said}"
    );
    assert!(
        said.contains("  again disable: disabled since 20"),
        "{said}"
    );
    assert!(
        said.contains("verdict: refused: again is disabled (why);"),
        "{said}"
    );
    let said = scratch.again(&["explain", "--pid", "999999999"]);
    assert_eq!(said.status(), 1);
    assert!(
        said.err
            .contains("there is no such process (pid 999999999)"),
        "{said:?}"
    );
    let said = scratch.again(&["explain", "--max-runs", "3", "--", "true"]);
    assert!(said.out.contains("would run: true\n"), "{said:?}");
    assert!(said.out.contains("  the cap: 0 of 3 reruns"), "{said:?}");
}
