use std::process::Command;

use again_test_support::Scratch;

fn readelf(option: &str) -> String {
    let scratch = Scratch::new();
    let output = Command::new("readelf")
        .args(["--wide", option])
        .arg(scratch.path("bin/again"))
        .output()
        .expect("readelf, of Debian's binutils");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What an old or a minimal machine needs: no library, no interpreter, any address; and no weight that nobody needs.
#[test]
fn it_is_static_position_independent_and_stripped() {
    let segments = readelf("--program-headers");
    assert!(segments.contains("Elf file type is DYN"), "{segments}");
    assert!(!segments.contains("INTERP"), "{segments}");
    assert!(!readelf("--dynamic").contains("(NEEDED)"));
    let sections = readelf("--section-headers");
    assert!(
        !sections.contains(".symtab") && !sections.contains(".debug_"),
        "{sections}"
    );
}

/// A kernel that gives no random bytes makes a library panic.
#[test]
fn panic_shows_file_and_line() {
    const GETRANDOM: &str = if cfg!(target_arch = "x86_64") {
        "318"
    } else {
        "278"
    };
    const EIO: &str = "5";
    let scratch = Scratch::new();
    let output = scratch
        .command(scratch.path("bin/helper"))
        .args(["without", GETRANDOM, EIO, "--"])
        .arg(scratch.path("bin/again"))
        .args(["run", "--delta", "1h", "--jitter", "5m", "--", "/bin/true"])
        .output()
        .expect("the helper");
    let text = String::from_utf8_lossy(&output.stderr);
    let place = text
        .lines()
        .find_map(|line| line.split_once("panicked at "))
        .map(|(_, place)| {
            place
                .trim_end_matches(':')
                .splitn(3, ':')
                .collect::<Vec<_>>()
        });
    let [file, line, _] = place.as_deref().unwrap_or_else(|| panic!("{output:?}")) else {
        panic!("{text}");
    };
    // Rust's own sources are named without a path of the machine that built them.
    let is_portable = !file.starts_with('/') || file.starts_with("/rustc/");
    assert!(file.ends_with(".rs") && is_portable, "{text}");
    assert!(line.parse::<u32>().is_ok_and(|line| line > 0), "{text}");
}
