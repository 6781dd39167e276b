use super::{FLEET, sources};

/// Whether a text reads the wall clock directly.
fn reads_the_clock(text: &str) -> bool {
    ["SystemTime::now", "UNIX_EPOCH.elapsed", "now_utc"]
        .iter()
        .any(|call| text.contains(call))
}

/// `again_base::sys::clock` reads the clock for both programs, so that tests can set the clock of a
/// node wrong.
#[test]
fn the_second_program_reads_the_wall_clock_in_one_place() {
    assert!(reads_the_clock("let now = SystemTime::now();"));
    for source in sources(FLEET) {
        let path = source.path.display();
        assert!(
            !reads_the_clock(&source.text),
            "{path}: use again_base::sys::clock"
        );
    }
}
