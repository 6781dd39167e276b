//! Decides whether an announced shutdown holds a timer that is due.

use again_base::model::{Identity, Span, Walltime};

/// Default time before a shutdown during which it holds timers.
pub const WITHIN: Span = Span::from_secs(900);

/// Time after which a shutdown that did not happen no longer holds timers.
const OVERDUE: Span = Span::from_secs(300);

/// Shutdowns that have been announced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Announced {
    /// Time of the shutdown that systemd-logind has scheduled.
    pub at: Option<Walltime>,
    /// Process that counts down to a shutdown: shutdown(8) of sysvinit.
    pub by: Option<Identity>,
}

/// Shutdown that holds a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// Time of the shutdown, if known.
    pub at: Option<Walltime>,
    /// Time for which it still holds the timer, if nobody changes it; None means until the process
    /// ends.
    pub left: Option<Span>,
    /// Process that counts down to the shutdown.
    pub by: Option<Identity>,
}

/// Time of a scheduled shutdown, in the format of systemd-logind: `USEC=` and the microseconds
/// since 1970. None for anything else.
pub fn scheduled(text: &[u8]) -> Option<Walltime> {
    let text = String::from_utf8_lossy(text);
    let mut lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("USEC="));
    let micros: u64 = lines.next_back()?.trim_matches(['"', '\'']).parse().ok()?;
    (micros != 0 && micros != u64::MAX).then(|| Walltime::from_millis(micros / 1000))
}

/// Shutdown that holds a timer now: one within this span, or one that a process counts down to.
pub fn holds(announced: Announced, within: Span, now: Walltime) -> Option<Shutdown> {
    if within == Span::ZERO {
        return None;
    }
    let by_time = announced.at.and_then(|at| {
        let is_near = at.since(now) <= within && now.since(at) < OVERDUE;
        is_near.then(|| Shutdown {
            at: Some(at),
            left: Some((at + OVERDUE).since(now)),
            by: None,
        })
    });
    let by_process = || {
        announced.by.map(|who| Shutdown {
            at: None,
            left: None,
            by: Some(who),
        })
    };
    by_time.or_else(by_process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: Walltime = Walltime::from_millis(10_000_000);

    fn left(at: Walltime, now_secs: u64) -> Option<u64> {
        let announced = Announced {
            at: Some(at),
            by: None,
        };
        let held = holds(announced, WITHIN, Walltime::from_millis(now_secs * 1000));
        held.and_then(|shutdown| shutdown.left).map(Span::secs)
    }

    #[test]
    fn shutdown_holds_from_a_quarter_of_an_hour_before_its_time_until_five_minutes_after_it() {
        for (now, expected) in [
            (9_099, None),
            (9_100, Some(1200)),
            (9_940, Some(360)),
            (10_000, Some(300)),
            (10_299, Some(1)),
            (10_300, None),
            (20_000, None),
        ] {
            assert_eq!(left(AT, now), expected, "{now}");
        }
    }

    #[test]
    fn setting_of_none_holds_nothing_and_a_process_holds_while_it_lives() {
        let who = Identity { pid: 7, start: 1 };
        let both = Announced {
            at: Some(AT),
            by: Some(who),
        };
        assert_eq!(holds(both, Span::ZERO, AT), None);
        assert_eq!(holds(both, WITHIN, AT).and_then(|held| held.at), Some(AT));
        let later = Walltime::from_millis(99_000_000);
        let held = holds(both, WITHIN, later).expect("held");
        assert_eq!((held.by, held.left), (Some(who), None));
        assert_eq!(holds(Announced::default(), WITHIN, AT), None);
    }

    #[test]
    fn time_of_a_shutdown_is_read_as_logind_writes_it() {
        let read = |text: &str| scheduled(text.as_bytes()).map(Walltime::millis);
        assert_eq!(
            read("USEC=1795219387000123\nWARN_WALL=1\nMODE=reboot\n"),
            Some(1_795_219_387_000)
        );
        assert_eq!(read("USEC=\"5000\"\n"), Some(5));
        assert_eq!(read("USEC=1000\nUSEC=2000\n"), Some(2));
        for text in [
            "",
            "USEC=",
            "USEC=-1",
            "USEC=0",
            "USEC=18446744073709551615",
            "USEC=99999999999999999999",
            "usec=5000",
            "MODE=reboot",
            "5000",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn total(text in proptest::collection::vec(any::<u8>(), 0..60), at in any::<u64>(), now in any::<u64>(), within in any::<u64>()) {
            let _ = scheduled(&text);
            let announced = Announced { at: Some(Walltime::from_millis(at)), by: None };
            let _ = holds(announced, Span::from_nanos(within), Walltime::from_millis(now));
        }
    }
}
