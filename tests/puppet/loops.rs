use std::fs;

use again_test_support::{LONG, Scratch};

/// The cap: exactly so many reruns, then an Exec that fails and says why and what to do; other targets go on.
#[test]
fn a_manifest_that_always_asks_stops_at_the_cap() {
    let scratch = Scratch::with_puppet();
    scratch.settings("max_runs = 3");
    let always = scratch.manifest("exec { '/bin/true': notify => Exec['again'] }");
    scratch.write("work/always.pp", &always);
    scratch.write(
        "work/another.pp",
        &scratch.manifest(&crate::changes_once(&scratch, "Exec['again']")),
    );

    scratch
        .puppet_apply(&["--detailed-exitcodes", "always.pp"])
        .run()
        .expect(&[2]);
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1 + 3);

    let logs = scratch.logs();
    assert_eq!(logs.len(), 3);
    let last = &logs[2].1;
    let line = last
        .lines()
        .find(|line| line.contains("again: refused: "))
        .unwrap_or_else(|| panic!("no refusal in {last}"));
    assert!(
        line.contains("the cap is reached: 3 of at most 3 reruns within 1h"),
        "why: {line}"
    );
    assert!(
        line.contains("max_runs") && line.contains("again reset"),
        "what to do: {line}"
    );
    assert!(
        last.contains("instead of one of [0]"),
        "the Exec failed: {last}"
    );
    assert!(!logs[0].1.contains("refused") && !logs[1].1.contains("refused"));

    let status = scratch.status();
    let target = &status["targets"][0];
    assert_eq!(
        (&target["cap"]["used"], &target["cap"]["max_runs"]),
        (&3.into(), &3.into()),
        "{status:#}"
    );
    assert!(target["cap"]["frees_at"].is_string(), "{status:#}");
    assert!(
        target["refused"]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("the cap is reached")),
        "{status:#}"
    );
    let shown = scratch.again(&["status"]);
    assert!(shown.out.contains("the cap is reached"), "{shown:?}");

    scratch.puppet_apply(&["another.pp"]).run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!(
        scratch.starts().len(),
        4 + 2,
        "a second target has a cap of its own"
    );
    assert_eq!(
        scratch.status()["targets"].as_array().map(Vec::len),
        Some(2)
    );

    // By hand once more: a new chain, and the cap still stands.
    let run = scratch
        .puppet_apply(&["--detailed-exitcodes", "always.pp"])
        .run()
        .expect(&[6]);
    assert!(run.out.contains("the cap is reached"), "{}", run.out);
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 6 + 1);
}

/// Four targets that never settle, side by side: each gets what its own cap allows, and then an Exec that fails.
#[test]
fn four_targets_at_the_same_time_keep_a_cap_each() {
    const TARGETS: usize = 4;
    const CAP: usize = 2;
    let scratch = Scratch::with_puppet();
    let total = TARGETS * CAP;
    scratch.settings(&format!("max_runs = {CAP}\nmax_runs_total = {total}"));
    let always = scratch.manifest("exec { '/bin/true': notify => Exec['again'] }");
    // Makes Puppet's directories: several that make them at once get in each other's way.
    scratch.puppet_apply(&["-e", ""]).run().expect(&[0]);
    let started: Vec<_> = (0..TARGETS)
        .map(|n| {
            let name = format!("always-{n}.pp");
            scratch.write(&format!("work/{name}"), &always);
            scratch.puppet_apply(&[&name]).start()
        })
        .collect();
    for run in started {
        run.wait().expect(&[0]);
    }
    scratch.settle(LONG);

    let starts = scratch.starts();
    for n in 0..TARGETS {
        let name = format!("always-{n}.pp");
        let mut own: Vec<&again_test_support::Record> = starts
            .iter()
            .filter(|run| run.command.iter().any(|word| word.ends_with(&name)))
            .collect();
        own.sort_by(|a, b| a.at.total_cmp(&b.at));
        assert_eq!(own.len(), 1 + CAP, "runs of {name}");
        for (before, after) in own.iter().zip(&own[1..]) {
            assert!(
                after.at >= before.ended().expect("its end"),
                "{name}: an overlap"
            );
        }
    }
    assert_eq!(scratch.history_of("refused").len(), TARGETS);
    let status = scratch.status();
    let targets = status["targets"].as_array().expect("targets");
    assert_eq!(targets.len(), TARGETS);
    for target in targets {
        assert_eq!(
            (
                &target["cap"]["used"],
                target["timers"].as_array().map(Vec::len)
            ),
            (&CAP.into(), Some(0)),
            "{target:#}"
        );
    }
}

#[test]
fn many_notifications_of_one_run_are_one_rerun() {
    let scratch = Scratch::with_puppet();
    let files = format!(
        "Integer[1, 33].each |$n| {{ file {{ \"{}/made-${{n}}\": content => 'x', notify => Exec['again'] }} }}",
        scratch.root()
    );
    scratch.write("work/site.pp", &scratch.manifest(&files));
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!((scratch.starts().len(), scratch.catalogs().len()), (2, 2));
    assert_eq!(scratch.history_of("requested").len(), 1);
}

/// Each run learns from a fact what the runs before it have found out. The first two numbers are there in the first run, each of
/// the next needs one more, and the last run has nothing left to do: eight runs, under the settings as they come.
#[test]
fn a_recursive_manifest_with_n_8_takes_eight_runs() {
    let scratch = Scratch::with_puppet();
    let root = scratch.root();
    fs::create_dir(scratch.path("numbers")).expect("a directory");
    scratch.write(
        "modules/fibonacci/lib/facter/fibonacci.rb",
        &format!(
            "Facter.add(:fibonacci) do\n  setcode {{ Dir.glob('{root}/numbers/*').to_h {{ |f| [File.basename(f), File.read(f).to_i] }} }}\nend\n"
        ),
    );
    scratch.write(
        "modules/fibonacci/manifests/number.pp",
        &format!(
            "define fibonacci::number {{\n\
               $n = Integer($title)\n\
               $known = $facts['fibonacci']\n\
               if $n > 2 {{\n\
                 [$n - 1, $n - 2].each |$before| {{\n\
                   unless defined(Fibonacci::Number[\"${{before}}\"]) {{ fibonacci::number {{ \"${{before}}\": }} }}\n\
                 }}\n\
               }}\n\
               $value = $n ? {{\n\
                 Integer[1, 2] => 1,\n\
                 default => ($known[\"${{$n - 1}}\"] and $known[\"${{$n - 2}}\"]) ? {{\n\
                   true => $known[\"${{$n - 1}}\"] + $known[\"${{$n - 2}}\"],\n\
                   default => undef,\n\
                 }},\n\
               }}\n\
               if $value =~ NotUndef {{\n\
                 file {{ \"{root}/numbers/${{n}}\": content => String($value), notify => Exec['again'] }}\n\
               }}\n\
             }}\n"
        ),
    );
    scratch.write(
        "work/site.pp",
        &scratch.manifest("fibonacci::number { '8': }"),
    );
    scratch.puppet_apply(&["site.pp"]).run().expect(&[0]);
    scratch.settle(LONG);
    assert_eq!(
        fs::read_to_string(scratch.path("numbers/8")).expect("the eighth number"),
        "21"
    );
    assert_eq!((scratch.starts().len(), scratch.catalogs().len()), (8, 8));
    assert!(scratch.history_of("refused").is_empty());
    let runs: Vec<String> = scratch.starts()[1..]
        .iter()
        .map(|run| run.environment["AGAIN_RUN"].clone())
        .collect();
    assert_eq!(runs, ["2", "3", "4", "5", "6", "7", "8"]);
    let chains: std::collections::BTreeSet<String> = scratch.starts()[1..]
        .iter()
        .map(|run| run.environment["AGAIN_CHAIN"].clone())
        .collect();
    assert_eq!(chains.len(), 1, "one chain: {chains:?}");
}
