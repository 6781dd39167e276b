use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::Command;

use again_test_support::{
    IDLE, Past, SHORT, Scratch, answer, copy_program, start, wait_until, write_program,
};

#[track_caller]
fn assert_same(first: &Past, rerun: &Past) {
    for what in ["cmdline", "cwd", "limits"] {
        let show = |past: &Past| {
            String::from_utf8_lossy(&past.raw(what))
                .chars()
                .take(2000)
                .collect::<String>()
        };
        assert!(
            first.raw(what) == rerun.raw(what),
            "{what}: {} became {}",
            show(first),
            show(rerun)
        );
    }
    assert_eq!(first.environment(), rerun.environment());
}

/// Log of the newest rerun.
fn log(scratch: &Scratch) -> PathBuf {
    let status = scratch.status();
    let target = &status["targets"][0];
    let log = target["running"]["log"]
        .as_str()
        .or(target["last"]["log"].as_str());
    PathBuf::from(log.unwrap_or_else(|| panic!("no log: {status:#}")))
}

/// Last entry of the history about a timer, when there is one.
fn failure(scratch: &Scratch) -> String {
    wait_until("the failure", SHORT, || scratch.told("failed").len() == 1);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
    scratch.told("failed")[0].1.clone()
}

#[test]
fn the_environment_is_the_runs_own() {
    let scratch = Scratch::new();
    let mut command = scratch.apply(
        "site",
        "ask('run', env: {'RIG_MARK' => 'changed', 'ADDED' => '1', 'PATH' => '/bin'}) if NTH == 1",
    );
    command
        .env("LINES", "two\nlines\n")
        .env("BYTES", OsStr::from_bytes(b"\xff\xfe not UTF-8 \x01"))
        .env("EMPTY", "")
        .env("EQUALS", "=a=b==")
        .env("LONG", "x".repeat(100_000))
        .env("lower.dots-and-dashes", "odd name")
        .env("HOME", "/somewhere/else")
        .env_remove("LOGNAME");
    start(&mut command).finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert_same(&runs[0], &runs[1]);
    for (name, value) in [
        ("HOME", "/somewhere/else"),
        ("EMPTY", ""),
        ("USER", "rig"),
        ("LINES", "two\nlines\n"),
    ] {
        assert_eq!(runs[1].variable(name).as_deref(), Some(value), "{name}");
    }
    for name in ["LOGNAME", "ADDED"] {
        assert_eq!(runs[1].variable(name), None, "{name}");
    }
    // Variables that belong to this rerun.
    assert_eq!(runs[1].variable("AGAIN_RUN").as_deref(), Some("2"));
    assert_eq!(runs[1].variable("AGAIN_TIMER").as_deref(), Some("again"));
    assert_eq!(
        runs[1].variable("AGAIN_CHAIN").map(|chain| chain.len()),
        Some(8)
    );
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

#[test]
fn odd_arguments_are_reproduced_to_the_byte() {
    let long = "y".repeat(100_000);
    let cases: [&[&[u8]]; 8] = [
        &[b""],
        &[b"", b"", b"a", b""],
        &[b"two\nlines", b"tab\there", b"bell\x07"],
        &[b"\xff\xfe", b"\xc3\x28", "ä€😀".as_bytes()],
        &[
            b"a b  c",
            b"'quoted'",
            b"\"twice\"",
            b"$HOME",
            b"`id`",
            b"back\\slash",
            b"*",
        ],
        &[long.as_bytes()],
        &[b"--no-such-option", b"-", b"--tags=a,b", b"-e"],
        &[b"--", b"--noop", b"--again"],
    ];
    for (n, case) in cases.iter().enumerate() {
        let scratch = Scratch::new();
        scratch.write("work/site.pp", "ask('run') if NTH == 1");
        let mut words = vec![OsString::from("apply"), OsString::from("site.pp")];
        words.extend(case.iter().map(|word| OsString::from_vec(word.to_vec())));
        start(&mut scratch.puppet_command(&words)).finish();
        let asked = scratch.runs("site")[0].asked();
        assert_eq!(asked[0].code, 0, "case {n}: {asked:?}");
        let runs = scratch.wait_for_runs("site", 2);
        assert_same(&runs[0], &runs[1]);
        let cmdline = runs[1].raw("cmdline");
        let tail = case
            .iter()
            .flat_map(|word| [word, &b"\0"[..]].concat())
            .collect::<Vec<u8>>();
        assert!(
            cmdline.ends_with(&[b"site.pp\0", &tail[..]].concat()),
            "case {n} is as it should be"
        );
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
    println!("{} odd command lines", cases.len());
}

/// The whole output of a rerun, to both descriptors and far more than a pipe holds, is in its log,
/// and the rerun is not killed by SIGPIPE.
#[test]
fn the_output_of_a_rerun_is_whole_in_its_log() {
    let scratch = Scratch::new();
    let manifest = "ask('run') if NTH == 1\n\
        if NTH == 2\n\
          20_000.times { |n| (n.even? ? STDOUT : STDERR).syswrite(\"line #{n} #{'.' * 40}\\n\") }\n\
          system('echo from below; echo and its error >&2')\n\
        end";
    start(&mut scratch.apply("site", manifest)).finish();
    let runs = scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    let expected: String = (0..20_000)
        .map(|n| format!("line {n} {}\n", ".".repeat(40)))
        .collect();
    let written = fs::read_to_string(log(&scratch)).expect("a log");
    assert!(
        written == expected + "from below\nand its error\n",
        "{} bytes",
        written.len()
    );
    let input = runs[1].descriptors().into_iter().find(|(fd, _)| *fd == 0);
    assert_eq!(input, Some((0, "/dev/null".to_owned())));
    // The log may contain secrets.
    let mode =
        std::os::unix::fs::MetadataExt::mode(&fs::metadata(log(&scratch)).expect("a log")) & 0o777;
    assert_eq!(mode, 0o600);
    scratch.assert_nothing_left();
}

/// Returns the texts of all files in the log directory, sorted. Some may be removed meanwhile.
fn said_in_logs(scratch: &Scratch) -> Vec<String> {
    let files = fs::read_dir(scratch.path("logs")).expect("logs").flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts
}

#[test]
fn only_the_newest_logs_are_kept() {
    let scratch = Scratch::new();
    scratch.settings("keep_logs = 3");
    fs::create_dir(scratch.path("logs")).expect("created");
    fs::write(scratch.path("logs/precious"), "not ours").expect("written");
    start(&mut scratch.apply("site", "puts NTH; STDOUT.flush; ask('run') if NTH < 7")).finish();
    scratch.wait_for_runs("site", 7);
    scratch.wait_until_settled();
    wait_until("the upkeep", IDLE, || {
        said_in_logs(&scratch) == ["5\n", "6\n", "7\n", "not ours"]
    });
    scratch.assert_nothing_left();
}

/// Reruns of one target do not affect the logs of another.
#[test]
fn the_newest_logs_of_each_target_are_kept() {
    let scratch = Scratch::new();
    scratch.settings("keep_logs = 1");
    for word in ["one", "two", "two", "two"] {
        scratch.again_well(&["run", "--", "/bin/echo", word]);
        scratch.wait_until_settled();
    }
    wait_until("the upkeep", IDLE, || {
        said_in_logs(&scratch) == ["one\n", "two\n"]
    });
    scratch.assert_nothing_left();
}

/// The first command that runs after the end of the rerun cuts its log: beginning and end stay,
/// with a line about the cut.
#[test]
fn a_log_that_is_too_long_is_cut_once_its_rerun_has_ended() {
    let scratch = Scratch::new();
    scratch.settings("max_log_size = \"100K\"");
    let long = "seq 1 50000; touch said; until test -e go; do sleep 0.05; done";
    scratch.again_well(&["run", "--", "/bin/sh", "-c", long]);
    wait_until("the output", SHORT, || scratch.path("work/said").exists());
    let status = scratch.status();
    assert!(status["targets"][0]["running"].is_object(), "{status:#}");
    assert_eq!(
        scratch.logs()[0].1.lines().count(),
        50_000,
        "it is still written to"
    );
    scratch.write("work/go", "");
    scratch.wait_until_settled();
    let (path, text) = scratch.logs().remove(0);
    assert!(
        text.len() <= 100 << 10 && text.len() > 99 << 10,
        "{}",
        text.len()
    );
    assert!(
        text.starts_with("1\n2\n") && text.ends_with("\n49999\n50000\n"),
        "{text}"
    );
    assert_eq!(
        text.matches("bytes were cut out here, see max_log_size")
            .count(),
        1
    );
    println!("{}: {} bytes", path.display(), text.len());
    scratch.assert_nothing_left();
}

/// The setting is absent.
#[test]
fn twenty_logs_are_kept_by_default() {
    let scratch = Scratch::new();
    let script = "puts NTH; STDOUT.flush; ask('run') if NTH.odd?";
    let names = || {
        let logs = fs::read_dir(scratch.path("logs")).expect("logs").flatten();
        let names = logs.map(|entry| entry.file_name().into_string().expect("plain"));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    start(&mut scratch.apply("site", script)).finish();
    scratch.wait_for_runs("site", 2);
    scratch.wait_until_settled();
    let first = names().pop().expect("a log");
    let target = first.rsplit('-').next().expect("the target's id");
    let planted = |n: u32| format!("202001{n:02}T000000000-0123abcd-2-{target}");
    for n in 1..=25 {
        fs::write(scratch.path("logs").join(planted(n)), "old").expect("written");
    }
    start(&mut scratch.apply("site", script)).finish();
    scratch.wait_for_runs("site", 4);
    scratch.wait_until_settled();
    wait_until("the upkeep", IDLE, || names().len() == 20);
    let mut names = names();
    let newest = names.pop().expect("a log");
    assert_eq!(
        fs::read_to_string(scratch.path("logs").join(&newest)).expect("readable"),
        "4\n"
    );
    assert_eq!(names.pop().as_ref(), Some(&first));
    assert_eq!(names, (8..=25).map(planted).collect::<Vec<_>>());
    scratch.assert_nothing_left();
}

/// The log of a running rerun is kept, even if only one is kept and the next rerun is already
/// prepared.
#[test]
fn the_log_of_a_rerun_outlasts_it() {
    let scratch = Scratch::new();
    scratch.settings("keep_logs = 1");
    let manifest = "puts NTH; STDOUT.flush; ask('run') if NTH < 3\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    wait_until("the rerun to ask", SHORT, || {
        let runs = scratch.runs("site");
        runs.get(1).is_some_and(|rerun| !rerun.asked().is_empty())
    });
    scratch.waiter("again").wait_until_asleep();
    let logs = |texts: &[&str]| said_in_logs(&scratch) == texts;
    wait_until("the upkeep", IDLE, || logs(&["2\n"]));
    scratch.release("go");
    scratch.wait_for_runs("site", 3);
    scratch.wait_until_settled();
    wait_until("the upkeep", IDLE, || logs(&["3\n"]));
}

/// A rerun of another target does not remove it either.
#[test]
fn the_log_of_a_rerun_outlasts_those_of_others() {
    let scratch = Scratch::new();
    scratch.settings("keep_logs = 1");
    let manifest = "puts 'long'; STDOUT.flush; ask('run') if NTH == 1\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    wait_until("the rerun", SHORT, || scratch.runs("site").len() == 2);
    let logs = || fs::read_dir(scratch.path("logs")).expect("logs").count();
    for _ in 0..3 {
        scratch.again_well(&["run", "--", "/bin/true"]);
        let count = scratch.told("started").len();
        wait_until("another", SHORT, || {
            scratch.waiters().is_empty() && scratch.told("started").len() >= count
        });
    }
    wait_until("the others", SHORT, || scratch.told("started").len() == 4);
    wait_until("the upkeep", IDLE, || logs() == 2);
    let log = scratch.status()["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .find_map(|target| target["running"]["log"].as_str().map(str::to_owned))
        .expect("the log of the rerun that goes on");
    wait_until("its words", SHORT, || {
        fs::read_to_string(&log).expect("there") == "long\n"
    });
    scratch.release("go");
    scratch.wait_until_settled();
}

/// Installs a copy of ruby, so that it can be replaced.
fn own_ruby(scratch: &Scratch, name: &str) -> String {
    let ruby = fs::canonicalize("/usr/bin/ruby").expect("ruby");
    copy_program(ruby, scratch.path(&format!("bin/{name}")));
    scratch.at(&format!("bin/{name}"))
}

fn with_ruby(scratch: &Scratch, ruby: &str, manifest: &str) -> Command {
    scratch.write("work/site.pp", manifest);
    let mut command = scratch.command(ruby);
    command.args([
        "--disable-gems",
        &scratch.at("bin/puppet"),
        "apply",
        "site.pp",
    ]);
    scratch.with_output(&mut command);
    command
}

/// An upgrade in place: the run executes a file that no longer exists, the rerun the new one.
#[test]
fn an_interpreter_that_was_upgraded_during_the_run() {
    let scratch = Scratch::new();
    let ruby = own_ruby(&scratch, "ruby3.1");
    let manifest = format!(
        "if NTH == 1\nFile.rename('{ruby}', '{ruby}.old'); File.binwrite('{ruby}', File.binread('{ruby}.old')); File.chmod(0755, '{ruby}'); File.delete('{ruby}.old')\nask('run')\nend\n\
         note('exe', File.readlink('/proc/self/exe'))"
    );
    start(&mut with_ruby(&scratch, &ruby, &manifest)).finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert_eq!(
        runs[0].text("exe"),
        format!("{ruby}.old (deleted)"),
        "the case is as it should be"
    );
    assert_eq!(runs[1].text("exe"), ruby);
    assert_same(&runs[0], &runs[1]);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The upgrade happens while the waiter waits: the path is resolved at the exec, not at the
/// request.
#[test]
fn an_interpreter_that_was_upgraded_after_the_request() {
    let scratch = Scratch::new();
    let ruby = own_ruby(&scratch, "ruby3.1");
    let manifest = "ask('run') if NTH == 1\nhold('go') if NTH == 1";
    let run = start(&mut with_ruby(&scratch, &ruby, manifest));
    scratch.wait_for_state("again", "waiting for the run");
    fs::remove_file(&ruby).expect("removed");
    own_ruby(&scratch, "ruby3.1");
    scratch.release("go");
    run.finish();
    let runs = scratch.wait_for_runs("site", 2);
    assert_same(&runs[0], &runs[1]);
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The interpreter was found in PATH, and no program of that name is left: the history has an error
/// that lists the attempts.
#[test]
fn an_interpreter_that_was_removed() {
    let scratch = Scratch::new();
    let ruby = own_ruby(&scratch, "ruby9.9");
    let manifest = "ask('run') if NTH == 1\nhold('go') if NTH == 1";
    let run = start(&mut with_ruby(&scratch, &ruby, manifest));
    scratch.wait_for_state("again", "waiting for the run");
    fs::remove_file(&ruby).expect("removed");
    scratch.release("go");
    run.finish();
    let reason = failure(&scratch);
    assert!(
        reason.contains("cannot execute")
            && reason.contains("ruby9.9")
            && reason.contains("No such file"),
        "{reason}"
    );
    assert_eq!(scratch.runs("site").len(), 1);
    // A rerun that could not be started does not count as a start.
    assert!(scratch.status()["targets"][0]["running"].is_null());
}

/// `again` itself is upgraded while its waiters wait: they continue with the old program.
#[test]
fn again_itself_was_replaced_or_removed() {
    for replace in [true, false] {
        let scratch = Scratch::new();
        let run =
            start(&mut scratch.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 1"));
        scratch.wait_for_state("again", "waiting for the run");
        fs::remove_file(scratch.path("bin/again")).expect("removed");
        if replace {
            fs::write(scratch.path("bin/again"), "not a program").expect("replaced");
        }
        scratch.release("go");
        run.finish();
        let runs = scratch.wait_for_runs("site", 2);
        assert_same(&runs[0], &runs[1]);
        let _ = fs::remove_file(scratch.path("bin/again"));
        copy_program(
            again_test_support::binary_under_test(),
            scratch.path("bin/again"),
        );
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

#[test]
fn a_manifest_that_is_gone_by_then() {
    let scratch = Scratch::new();
    start(&mut scratch.apply("site", "ask('run', '--delta', '1'); File.delete('site.pp')"))
        .finish();
    let reason = failure(&scratch);
    assert!(
        reason.contains("the manifest") && reason.contains("site.pp is not there"),
        "{reason}"
    );
    assert_eq!(scratch.runs("site").len(), 1);
}

#[test]
fn a_working_directory_that_is_gone_by_then() {
    let scratch = Scratch::new();
    let manifest = scratch.write("site.pp", "ask('run', '--delta', '1'); Dir.rmdir(Dir.pwd)");
    fs::create_dir(scratch.path("work/below")).expect("created");
    let mut command = scratch.puppet_command(&["apply".into(), manifest.into()]);
    command.current_dir(scratch.path("work/below"));
    start(&mut command).finish();
    let reason = failure(&scratch);
    assert!(
        reason.contains("the working directory") && reason.contains("work/below is not there"),
        "{reason}"
    );
}

/// A command named by an absolute path needs no directory, and runs again in `/`.
#[test]
fn a_working_directory_that_is_gone_already() {
    for is_absolute in [false, true] {
        let scratch = Scratch::new();
        let text = "Dir.rmdir(Dir.pwd) if NTH == 1; ask('run') if NTH == 1";
        let manifest = scratch.write("site.pp", text);
        fs::create_dir(scratch.path("work/below")).expect("created");
        let word = if is_absolute {
            manifest
        } else {
            "../../site.pp".into()
        };
        let mut command = scratch.puppet_command(&["apply".into(), word.into()]);
        command.current_dir(scratch.path("work/below"));
        start(&mut command).finish();
        let asked = scratch.runs("site")[0].asked();
        if is_absolute {
            assert_eq!(
                again_test_support::assert_line(&asked[0].output),
                "scheduled"
            );
            let runs = scratch.wait_for_runs("site", 2);
            assert_eq!(runs[1].text("cwd").trim(), "/");
            scratch.wait_until_settled();
        } else {
            assert_eq!(asked[0].code, 1);
            assert_eq!(again_test_support::assert_line(&asked[0].output), "refused");
            assert!(
                asked[0].output.contains("working directory was deleted"),
                "{asked:?}"
            );
        }
        scratch.assert_nothing_left();
    }
}

/// `puppet apply < FILE`.
#[test]
fn standard_input_from_a_file() {
    let scratch = Scratch::new();
    let path = scratch.write("stdin.rb", "ask('run') if NTH == 1\nnote('whole', '')\n");
    let mut command = scratch.puppet_command(&["apply".into()]);
    command.stdin(File::open(path).expect("opened"));
    start(&mut command).finish();
    let runs = scratch.wait_for_runs("stdin", 2);
    assert_same(&runs[0], &runs[1]);
    assert!(scratch.path("past/stdin/002/whole").exists());
    let input = runs[1].descriptors().into_iter().find(|(fd, _)| *fd == 0);
    assert_eq!(input, Some((0, scratch.at("stdin.rb"))), "opened again");
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

/// The position in the file at which the run began to read is unknown when it makes its request, so
/// the rerun reads the file from its beginning: a limit that the manual states.
#[test]
fn standard_input_from_the_middle_of_a_file() {
    let scratch = Scratch::new();
    let path = scratch.write("stdin.rb", "note('top', '')\nask('run') if NTH == 1\n");
    let mut file = File::open(path).expect("opened");
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(16)).expect("moved");
    let mut command = scratch.puppet_command(&["apply".into()]);
    command.stdin(file);
    start(&mut command).finish();
    let asked = scratch.runs("stdin")[0].asked();
    assert_eq!(
        again_test_support::assert_line(&asked[0].output),
        "scheduled"
    );
    scratch.wait_for_runs("stdin", 2);
    let saw_top = |nth: &str| scratch.path(&format!("past/stdin/{nth}/top")).exists();
    assert_eq!((saw_top("001"), saw_top("002")), (false, true));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

#[test]
fn standard_input_from_a_file_that_is_gone() {
    let scratch = Scratch::new();
    let path = scratch.write(
        "stdin.rb",
        "ask('run', '--delta', '1') if NTH == 1\nFile.delete(\"#{ROOT}/stdin.rb\")",
    );
    let mut command = scratch.puppet_command(&["apply".into()]);
    command.stdin(File::open(&path).expect("opened"));
    start(&mut command).finish();
    let reason = failure(&scratch);
    assert!(
        reason.contains("standard input") && reason.contains("stdin.rb is not there"),
        "{reason}"
    );
}

/// `-- COMMAND` replaces the run's own words; directory, environment and the rest stay.
#[test]
fn a_command_in_place_of_the_runs_words() {
    let scratch = Scratch::new();
    let ask = "ask('run', '--', '/bin/sh', '-c', 'pwd; echo \"$RIG_MARK/$HOME/$ADDED/$0\"', 'zero', env: {'ADDED' => 'no', 'RIG_MARK' => 'no'})";
    start(&mut scratch.apply("site", ask)).finish();
    scratch.wait_until_settled();
    let written = fs::read_to_string(log(&scratch)).expect("a log");
    let work = scratch.at("work");
    assert_eq!(
        written,
        format!("{work}\ntwo words, a=b and an ä/{work}//zero\n")
    );
    scratch.assert_nothing_left();
}

/// The setting `command`, for sites that run puppet through a wrapper, is found in the run's PATH.
#[test]
fn a_command_from_the_settings() {
    let scratch = Scratch::new();
    scratch.settings("command = [\"wrapper\", \"an argument\", \"\"]");
    write_program(
        scratch.path("bin/wrapper"),
        "#!/bin/sh\nprintf '%s|' \"$@\" \"$PWD\"\n",
    );
    let mut command = scratch.apply("site", "ask('run', env: {'PATH' => '/bin'})");
    command.env("PATH", format!("{}:/usr/bin:/bin", scratch.at("bin")));
    start(&mut command).finish();
    scratch.wait_until_settled();
    let written = fs::read_to_string(log(&scratch)).expect("a log");
    assert_eq!(written, format!("an argument||{}|", scratch.at("work")));
    scratch.assert_nothing_left();
}

/// There may be wrappers between the run and `again`.
#[test]
fn the_run_is_found_behind_shells_and_wrappers() {
    let wrappers = [
        "['/bin/sh', '-c', '\"$@\"; true', 'sh']",
        "['/usr/bin/timeout', '60']",
        "['/usr/bin/env', 'A=B']",
        "['/usr/bin/setsid', '--wait']",
        "['/usr/bin/nice']",
        "['/bin/sh', '-c', '/bin/sh -c \"\\\"\\$@\\\"; exit \\$?\" sh \"$@\"; exit $?', 'sh']",
    ];
    for wrapper in wrappers {
        let scratch = Scratch::new();
        start(&mut scratch.apply(
            "site",
            &format!("ask('run', through: {wrapper}) if NTH == 1"),
        ))
        .finish();
        let asked = scratch.runs("site")[0].asked();
        assert_eq!(asked[0].code, 0, "{wrapper}: {asked:?}");
        let runs = scratch.wait_for_runs("site", 2);
        assert_same(&runs[0], &runs[1]);
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
    println!("{} wrappers", wrappers.len());
}

/// With `save_environment = false` the order on disk has no environment; the rerun still has it,
/// from the waiter's memory.
#[test]
fn the_environment_is_kept_off_the_disk_if_that_was_asked_for() {
    for save in [true, false] {
        let scratch = Scratch::new();
        scratch.settings(&format!("save_environment = {save}"));
        let mut command = scratch.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 1");
        command.env("SECRET", "xyzzy");
        let run = start(&mut command);
        scratch.wait_for_state("again", "waiting for the run");
        let everything = Command::new("/bin/grep")
            .args(["-rl", "xyzzy", &scratch.at("state")])
            .output()
            .expect("grep");
        let found = String::from_utf8(everything.stdout).expect("paths");
        assert_eq!(found.lines().count(), usize::from(save), "{found}");
        assert!(found.is_empty() || found.contains("/orders/"), "{found}");
        scratch.release("go");
        run.finish();
        let runs = scratch.wait_for_runs("site", 2);
        assert_same(&runs[0], &runs[1]);
        assert_eq!(runs[1].variable("SECRET").as_deref(), Some("xyzzy"));
        scratch.wait_until_settled();
        scratch.assert_nothing_left();
    }
}

/// A program named puppet that is not ruby, or a ruby that runs another script, is not a run.
#[test]
fn what_merely_looks_like_a_run_is_none() {
    let scratch = Scratch::new();
    // A shell script named puppet, run by a shell named ruby.
    copy_program("/bin/sh", scratch.path("bin/ruby"));
    fs::create_dir(scratch.path("bin/x")).expect("created");
    scratch.write(
        "bin/x/puppet",
        &format!("{} run; exit 0", scratch.at("bin/again")),
    );
    let mut command = scratch.command("/bin/sh");
    command.args([&scratch.at("bin/x/puppet"), "apply", "site.pp"]);
    let done = answer(&mut command);
    assert!(done.err.contains("no puppet run above"), "{done:?}");
    let mut command = scratch.command("/usr/bin/ruby");
    command.args([
        "--disable-gems",
        "-e",
        &format!("system('{}', 'run')", scratch.at("bin/again")),
        "puppet",
        "apply",
        "x.pp",
    ]);
    let done = answer(&mut command);
    assert!(done.err.contains("no puppet run above"), "{done:?}");
    scratch.assert_nothing_left();
}
