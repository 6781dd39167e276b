use std::os::unix::fs::symlink;

use again_test_support::{SHORT, Scratch, answer, start, wait_until};

/// Starts `puppet apply WORDS` in place of RUN in a shell script, and holds it for `again explain`.
/// Returns what that prints about the rerun, and its exit status.
#[track_caller]
fn explained(scratch: &Scratch, script: &str, words: &str) -> (i32, String) {
    scratch.write("work/hold", "hold('go')");
    let _ = std::fs::remove_dir_all(scratch.path("past/stdin"));
    let puppet = scratch.at("bin/puppet");
    let run = format!("ruby -W0 --disable-gems {puppet} apply {words}");
    let mut shell = scratch.command("sh");
    shell.args(["-c", &script.replace("RUN", &run)]);
    let shell = scratch.start(shell);
    wait_until("the run", SHORT, || !scratch.runs("stdin").is_empty());
    let pid = scratch.runs("stdin")[0].pid().to_string();
    let answer = scratch.again(&["explain", "--pid", &pid]);
    scratch.release("go");
    shell.finish();
    std::fs::remove_file(scratch.path("go")).expect("removed");
    (answer.status(), answer.out)
}

const HERE_DOCUMENT: &str = "exec RUN 5<<END <hold\n1\nEND";

#[test]
fn apply_from_a_descriptor_that_cannot_be_read_again_is_refused() {
    let scratch = Scratch::new();
    for (what, script) in [
        ("a pipe", "echo 1 | RUN 5<&0 <hold"),
        ("a FIFO", "mkfifo fifo; exec RUN 5<>fifo <hold"),
        ("a here-document", HERE_DOCUMENT),
        (
            "a deleted file",
            "echo 1 > gone; exec 5<gone; rm gone; exec RUN <hold",
        ),
        (
            "a file whose name is another's",
            "echo 1 > gone; exec 5<gone; rm gone; echo 2 > gone; exec RUN <hold",
        ),
        (
            "a memfd",
            "exec ruby -W0 -e 'm = syscall(319, \"m\", 0); exec(*ARGV, 5 => m, 0 => \"hold\")' RUN",
        ),
        (
            "a socket",
            "exec ruby -rsocket -e 'a, b = UNIXSocket.pair; exec(*ARGV, 5 => a, 0 => \"hold\")' RUN",
        ),
        ("a descriptor that is closed", "exec RUN <hold"),
    ] {
        let (status, said) = explained(&scratch, script, "/dev/fd/5");
        let verdict = said.lines().last().expect("a verdict");
        assert!(
            status == 1
                && verdict
                    .starts_with("verdict: refused: /dev/fd/5 cannot be read again by a rerun (")
                && verdict.ends_with("; give puppet a file that keeps its name"),
            "{what}: {said}"
        );
    }
}

#[test]
fn every_name_of_a_descriptor_is_known() {
    let scratch = Scratch::new();
    scratch.write("work/site.pp", "1");
    symlink("/dev/fd/5", scratch.path("work/link")).expect("linked");
    symlink("link", scratch.path("work/second")).expect("linked");
    symlink("/proc/self/fd", scratch.path("work/fds")).expect("linked");
    let refused = |words: &str| {
        let (status, said) = explained(&scratch, HERE_DOCUMENT, words);
        assert!(
            status == 1 && said.contains("verdict: refused: "),
            "{words}: {said}"
        );
    };
    for words in [
        "/dev/fd/5",
        "/proc/self/fd/5",
        "/proc/thread-self/fd/5",
        "/proc/$$/fd/5",
        "/proc/$$/task/$$/fd/5",
        "//dev/./fd/../fd/5",
        "link",
        "./second",
        "fds/5",
        "--catalog=/dev/fd/5",
        "-c/dev/fd/5",
        "-tc /dev/fd/5",
        "--catalog site.json -c /dev/fd/5",
        "--noop --no-noop -- /dev/fd/5",
        "--config /dev/fd/5 site",
    ] {
        refused(words);
    }
    let (status, said) = explained(&scratch, HERE_DOCUMENT, "site.pp.d /dev/fd/5");
    assert!(status == 0, "Puppet reads the first alone: {said}");
}

#[test]
fn apply_of_a_fifo_or_a_socket_by_its_name_is_refused() {
    let scratch = Scratch::new();
    for (opens, what) in [
        ("mkfifo file", "a FIFO"),
        ("ruby -rsocket -e 'UNIXServer.new(\"file\")'", "a socket"),
        ("mknod file c 1 5", "a device"),
    ] {
        let script = format!("rm -f file; {opens}; exec RUN <hold");
        let (status, said) = explained(&scratch, &script, "file");
        let expected = format!("verdict: refused: file cannot be read again by a rerun ({what})");
        assert!(status == 1 && said.contains(&expected), "{said}");
    }
}

#[test]
fn the_rerun_gets_the_name_of_a_file_that_the_run_has_as_a_descriptor() {
    let scratch = Scratch::new();
    scratch.write("work/code/site.pp", "1");
    let site = scratch.at("work/code/site.pp");
    symlink("/dev/fd/5", scratch.path("work/link")).expect("linked");
    for (opens, words, line) in [
        (
            "exec RUN 5<code/site.pp <hold",
            "/dev/fd/5",
            format!("apply {site}"),
        ),
        (
            "exec RUN 5<code/site.pp <hold",
            "link",
            format!("apply {site}"),
        ),
        (
            "exec RUN 5<code/site.pp <hold",
            "-c/dev/fd/5",
            format!("apply -c{site}"),
        ),
        (
            "exec RUN 5<code/site.pp <hold",
            "--catalog=/dev/fd/5 x",
            format!("apply --catalog={site} x"),
        ),
        (
            "exec RUN 5<code/site.pp <hold",
            "--catalog 1 -c /dev/fd/5",
            format!("apply --catalog 1 -c {site}"),
        ),
        (
            "exec RUN 5<code <hold",
            "/dev/fd/5/site",
            format!("apply {}/site", scratch.at("work/code")),
        ),
        (
            "exec RUN 5<code <hold",
            "/proc/self/fd/5",
            format!("apply {}", scratch.at("work/code")),
        ),
        (
            "exec RUN <hold",
            "/dev/stdin",
            format!("apply {}", scratch.at("work/hold")),
        ),
        (
            "exec RUN 5</dev/null <hold",
            "/dev/fd/5",
            "apply /dev/null".to_owned(),
        ),
        // All others stay as they were written.
        (
            "exec RUN <hold",
            "code/../code",
            "apply code/../code".to_owned(),
        ),
        ("exec RUN <hold", "missing", "apply missing".to_owned()),
        ("exec RUN <hold", "/dev/null", "apply /dev/null".to_owned()),
    ] {
        std::fs::write(scratch.path("work/code/site"), "1").expect("written");
        let (status, said) = explained(&scratch, opens, words);
        let expected = format!("{line}\n");
        let would = said.lines().find(|line| line.contains("would run: "));
        assert!(
            status == 0 && would.is_some_and(|would| format!("{would}\n").ends_with(&expected)),
            "{words}: {said}"
        );
    }
}

#[test]
fn request_for_apply_behind_a_wrapper_names_a_file_that_lasts() {
    let scratch = Scratch::new();
    let site = scratch.write("work/code/site.pp", "1");
    let code = scratch.at("work/code");
    symlink("/dev/fd/5", scratch.path("work/code/link")).expect("linked");
    let explain = |opens: &str, words: &str| {
        let again = scratch.at("bin/again");
        let script = format!("cd {code}; exec {again} explain -- {words} {opens}");
        scratch.run("sh", &["-c", &script])
    };
    for words in [
        "nice -n 5 puppet apply /dev/fd/5",
        "env -C code X=1 puppet apply link"
            .replace("code", &code)
            .as_str(),
    ] {
        let refused = explain("5<<END\n1\nEND", words);
        assert_eq!(refused.status(), 1, "{words}: {refused:?}");
        assert!(refused.out.contains("cannot be read again"), "{refused:?}");
        let named = explain("5<site.pp", words);
        assert_eq!(named.status(), 0, "{words}: {named:?}");
        let end = format!("puppet apply {}", site.display());
        let would = named.out.lines().find(|line| line.contains("would run: "));
        assert!(would.is_some_and(|line| line.ends_with(&end)), "{named:?}");
    }
}

#[test]
fn explain_names_a_wrapper_that_the_rerun_lacks() {
    let scratch = Scratch::new();
    let (status, said) = explained(&scratch, "flock lock nice -n 5 RUN <hold; true", "missing");
    assert!(
        status == 0 && said.contains("  without flock (pid "),
        "{said}"
    );
    assert!(said.contains("command = [\"flock\", …]"), "{said}");
    let (status, said) = explained(&scratch, "RUN <hold; true", "missing");
    assert!(status == 0 && !said.contains("  without "), "{said}");
}

/// The target is that of a run which names the file itself.
#[test]
fn run_with_its_manifest_on_dev_stdin_runs_again_from_the_file() {
    let scratch = Scratch::new();
    let site = scratch.write("work/site.pp", "ask('run') if NTH == 1 && NAME == 'stdin'");
    let mut run = scratch.puppet_command(&["apply".into(), "/dev/stdin".into()]);
    run.stdin(std::fs::File::open(&site).expect("opened"));
    start(&mut run).finish();
    let asked = scratch.wait_for_answers("stdin", 1);
    assert_eq!(asked[0].code, 0, "{asked:?}");
    let runs = scratch.wait_for_runs("site", 1);
    assert!(
        runs[0]
            .text("cmdline")
            .contains(&scratch.at("work/site.pp"))
    );
    scratch.wait_until_settled();
    let id = scratch.id();
    let mut plain = scratch.puppet_command(&["apply".into(), site.into()]);
    scratch.write("work/site.pp", "ask('run') if NTH == 2");
    start(&mut plain).finish();
    scratch.wait_for_runs("site", 3);
    scratch.wait_until_settled();
    assert_eq!(scratch.id(), id);
    scratch.assert_nothing_left();
}

#[test]
fn named_command_with_a_descriptor_of_the_caller_is_refused() {
    let scratch = Scratch::new();
    let puppet = scratch.at("bin/puppet");
    let again = scratch.at("bin/again");
    let mut shell = scratch.command("sh");
    shell.args([
        "-c",
        &format!("exec 5<<END\n1\nEND\n{again} run -- ruby {puppet} apply /dev/fd/5"),
    ]);
    let answer = answer(&mut shell);
    assert!(
        answer.code == Some(1) && answer.said().contains("/dev/fd/5 cannot be read again"),
        "{answer:?}"
    );
    scratch.assert_nothing_left();
}
