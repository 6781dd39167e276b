use std::process::Command;

use again_rig::Scratch;

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
