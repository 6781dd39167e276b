use crate::handover::counting;
use again_test_support::Scratch;

#[test]
fn a_terminal_gets_a_progress_line_and_colours() {
    let scratch = Scratch::for_driver();
    let command = counting(&scratch, "[ $n -ge 2 ] || $AGAIN --delta 4");
    let ended = scratch.start(scratch.on_terminal(&[], &command)).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    let progress = "\r\x1b[2Kagain: converge: run 2 of at most 10 (timer 'again') starts in ";
    assert!(ended.out.matches(progress).count() >= 2, "{ended:?}");
    for painted in [
        "again: converge: run 1 \x1b[32msucceeded\x1b[0m after ",
        "  \x1b[32msucceeded\x1b[0m  'again' in run 1",
        "again: \x1b[32mconverged: nothing asks for more",
    ] {
        assert!(ended.out.contains(painted), "{painted}: {ended:?}");
    }
    scratch.is_clean();
}

#[test]
fn no_color_and_a_dumb_terminal_are_respected() {
    for (name, value, progress) in [("NO_COLOR", "1", true), ("TERM", "dumb", false)] {
        let scratch = Scratch::for_driver();
        let command = counting(&scratch, "[ $n -ge 2 ] || $AGAIN --delta 3");
        let mut terminal = scratch.on_terminal(&[], &command);
        terminal.env(name, value);
        let ended = scratch.start(terminal).wait();
        assert_eq!(ended.status(), 0, "{ended:?}");
        assert!(!ended.out.contains("\x1b[3"), "{ended:?}");
        assert_eq!(ended.out.contains("\x1b[2K"), progress, "{ended:?}");
        scratch.is_clean();
    }
}

#[test]
fn a_pipe_gets_plain_lines_and_standard_output_is_the_commands() {
    let scratch = Scratch::for_driver();
    let command = counting(
        &scratch,
        "echo out; [ $n -ge 2 ] || $AGAIN --delta 1 > /dev/null",
    );
    let ended = scratch.start(scratch.converge(&[], &[command])).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert_eq!(ended.out, "out\nout\n");
    assert!(!ended.err.contains('\x1b') && !ended.err.contains('\r'));
    let lines: Vec<&str> = ended.err.lines().collect();
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("again: ") || line.starts_with("  ")),
        "{lines:?}"
    );
    assert!(
        ended
            .err
            .contains("run 2 of at most 10 (timer 'again') starts in ")
    );
    scratch.is_clean();
}

#[test]
fn a_reader_that_went_away_does_no_harm() {
    let scratch = Scratch::for_driver();
    let command = counting(&scratch, "[ $n -ge 2 ] || $AGAIN > /dev/null");
    let again = format!("{}/bin/again", scratch.root());
    let line = format!("set -o pipefail; {again} converge -- {command} 2>&1 | true");
    let ended = scratch.start(scratch.line(&["bash", "-c", &line])).wait();
    assert_eq!(ended.status(), 0, "{ended:?}");
    assert_eq!(scratch.text("n").trim(), "2");
    scratch.is_clean();
}
