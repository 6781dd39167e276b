//! Output of a panic: the manual says to report it.

use std::process::Command;

/// A kernel that returns no random bytes makes a library panic.
#[test]
fn panic_shows_file_and_line() {
    const GETRANDOM: &str = if cfg!(target_arch = "x86_64") {
        "318"
    } else {
        "278"
    };
    const EIO: &str = "5";
    let dir = tempfile::tempdir().expect("a directory");
    let settings = dir.path().join("again-fleet.toml");
    let again = again_test_support::binary_under_test();
    let text = format!(
        "certname = 'web1.test'\nendpoints = ['127.0.0.1:1']\nhelper = '{}'\n",
        again.display()
    );
    std::fs::write(&settings, text).expect("written");
    let output = Command::new(again_test_support::helper())
        .args(["without", GETRANDOM, EIO, "--"])
        .arg(env!("CARGO_BIN_EXE_again-fleet"))
        .args(["trigger", "--to", "lb1.test", "--config"])
        .arg(&settings)
        .arg("--state-dir")
        .arg(dir.path())
        .output()
        .expect("the helper");
    let text = String::from_utf8_lossy(&output.stderr);
    let place = text.split_once("panicked at ");
    let place = place.and_then(|(_, place)| place.lines().next());
    let place = place.unwrap_or_else(|| panic!("{output:?}"));
    let [file, line, ..] = place.split(':').collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    assert!(file.ends_with(".rs"), "{text}");
    assert!(line.parse::<u32>().is_ok_and(|line| line > 0), "{text}");
}
