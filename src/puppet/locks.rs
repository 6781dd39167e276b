//! Puppet's lock files, read as Puppet reads them (util/pidlock.rb, agent/disabler.rb).

use serde::Deserialize;

use again_base::puppet::cmdline::is_ruby_name;
use again_base::sys::process::base_name;

/// Pid in a lock file. `None` if the file is empty or not a number.
pub fn parse_pid(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|pid| *pid > 0)
}

/// Whether a process may hold the lock: ruby running puppet, or puppet itself.
pub fn may_hold(comm: &[u8], cmdline: &[u8]) -> bool {
    let mentions_puppet = cmdline.windows(6).any(|window| window == b"puppet");
    (is_ruby_name(base_name(comm)) && mentions_puppet) || comm.starts_with(b"puppet")
}

/// Reason why the agent is disabled. The presence of the file alone disables, so any content is
/// valid.
pub fn disabled_message(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct File {
        disabled_message: Option<String>,
    }
    serde_json::from_slice::<File>(text)
        .ok()?
        .disabled_message
        .filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_a_pid_or_nothing() {
        assert_eq!(parse_pid(b"4711"), Some(4711));
        assert_eq!(parse_pid(b" 4711\n"), Some(4711));
        for text in [
            &b""[..],
            b" ",
            b"x",
            b"-1",
            b"0",
            b"12 13",
            b"99999999999",
            b"\xff",
        ] {
            assert_eq!(parse_pid(text), None);
        }
    }

    #[test]
    fn knows_who_may_hold_the_lock() {
        assert!(may_hold(
            b"ruby3.1",
            b"/usr/bin/ruby3.1\0/usr/bin/puppet\0agent\0"
        ));
        assert!(may_hold(b"puppet", b"puppet agent: applying configuration"));
        assert!(!may_hold(b"ruby", b"ruby\0rails\0"));
        assert!(!may_hold(b"vim", b"vim\0/etc/puppet/x\0"));
    }

    #[test]
    fn finds_the_reason() {
        assert_eq!(
            disabled_message(br#"{"disabled_message":"why"}"#).as_deref(),
            Some("why")
        );
        assert_eq!(disabled_message(b""), None);
    }

    proptest! {
        #[test]
        fn total(text in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (parse_pid(&text), disabled_message(&text), may_hold(&text, &text));
        }
    }
}
