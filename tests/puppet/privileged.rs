use std::fs;

use again_test_support::{LONG, Scratch, in_namespaces, wait_until};

use crate::apply::two_runs;
use crate::changes_once;

/// A rerun does not depend on its log: where there is no space for that, its output is lost, and the catalog is applied.
#[test]
fn rerun_applies_the_catalog_without_space_for_its_log() {
    let body = || {
        let scratch = Scratch::with_puppet();
        let logs = scratch.at("logs");
        fs::create_dir(&logs).expect("created");
        let words = ["-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", &logs];
        let mounted = std::process::Command::new("mount").args(words).status();
        assert!(mounted.expect("mount").success());
        // Puppet would die of its first line.
        let rest = vec![b'x'; 2 << 20];
        fs::write(scratch.path("logs/other"), rest).expect("written");
        let manifest = scratch.manifest(&changes_once(&scratch, "Exec['again']"));
        let run = || scratch.puppet_apply(&["-e", &manifest]).run().expect(&[0]);
        run();
        two_runs(&scratch);
        let last = scratch.status()["targets"][0]["last"].clone();
        assert_ne!(last["outcome"], "failed", "{last:#}");
        assert_eq!(last["log"], "");
        let why = last["log_lost"].as_str().expect("why");
        assert!(
            why.contains(&logs) && why.contains("No space left on device"),
            "{why}"
        );
        let status = scratch.again(&["status"]).out;
        assert!(
            status.contains(&format!("its output is lost: {why}")),
            "{status}"
        );
        let reason = scratch.history_of("started")[0]["reason"].clone();
        assert_eq!(reason, format!("its output is lost: {why}"));
        let history = scratch.again_well(&["history"]);
        assert!(history.contains("its output is lost"), "{history}");
        let log = fs::read_to_string(scratch.path("state/again.log")).expect("a log");
        assert!(log.contains(&format!("its output is lost: {why}")), "{log}");
        assert_eq!(
            fs::read_dir(&logs).expect("there").count(),
            1,
            "no log is left"
        );
        // Once there is space again, there is a log, which has no more than it needs when it is done.
        fs::remove_file(scratch.path("logs/other")).expect("removed");
        fs::remove_file(scratch.path("made")).expect("removed");
        run();
        scratch.settle(LONG);
        assert_eq!(scratch.catalogs().len(), 4);
        let (log, text) = scratch.logs().remove(0);
        assert!(text.contains("Applied catalog"), "{text}");
        let blocks = || {
            scratch.status();
            let meta = fs::metadata(&log).expect("there");
            std::os::unix::fs::MetadataExt::blocks(&meta)
        };
        wait_until("what it does not need to be given back", LONG, || {
            blocks() * 512 < 1 << 20
        });
    };
    in_namespaces(
        &["--mount"],
        "privileged::rerun_applies_the_catalog_without_space_for_its_log",
        body,
    );
}
