use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use again_test_support::Scratch;

/// Puts a program of that text beside `again`.
fn beside(scratch: &Scratch, text: &str, mode: u32) {
    let path = scratch.path("bin/again-fleet");
    fs::write(&path, text).expect("again-fleet");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
}

#[test]
fn it_becomes_the_program_beside_it() {
    let scratch = Scratch::new();
    let text = "#!/bin/sh\nprintf '%s\\n' \"$(readlink /proc/$$/exe | grep -c again)\" \"$@\"\necho told >&2\nexit 75\n";
    beside(&scratch, text, 0o755);
    // Options of again's own are not again's here, and nothing of it stays.
    let words = [
        "nodes", "--config", "x", "-v", "--", "--help", "--where", "a b",
    ];
    let done = scratch.again(&[&["fleet"], &words[..]].concat());
    assert_eq!(done.code, Some(75), "{done:?}");
    assert_eq!(done.out, format!("0\n{}\n", words.join("\n")));
    assert_eq!(done.err, "told\n");
    let done = scratch.again(&["fleet", "--help"]);
    assert_eq!(done.out, "0\n--help\n");
    // Behind options of again's own too.
    let done = scratch.again(&["--verbose", "fleet", "nodes"]);
    assert_eq!(done.out, "0\nnodes\n", "{done:?}");
}

#[test]
fn without_it_the_line_says_what_to_do() {
    let installed = ["/usr/local/bin", "/usr/bin"].map(|bin| Path::new(bin).join("again-fleet"));
    assert!(
        !installed.iter().any(|path| path.exists()),
        "this machine has one of {installed:?}"
    );
    let scratch = Scratch::new();
    let done = scratch.again(&["fleet", "nodes"]);
    assert_eq!(done.code, Some(69), "{done:?}");
    assert_eq!(
        done.err,
        "again: error: again-fleet is not installed: it is neither beside this program nor in /usr/local/bin or /usr/bin; \
         install its package, or include common::again::fleet\n"
    );
    assert_eq!(done.out, "");
}

#[test]
fn one_that_cannot_be_executed_is_told_and_no_other_taken() {
    let scratch = Scratch::new();
    beside(&scratch, "", 0o644);
    let done = scratch.again(&["fleet"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    let path = scratch.at("bin/again-fleet");
    let expected = format!("again: error: cannot execute {path}: Permission denied\n");
    assert_eq!(done.err, expected);
}
