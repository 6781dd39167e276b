//! Points in time and spans of time, as plain numbers.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Point on CLOCK_BOOTTIME, in nanoseconds. Comparable within one boot only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Boottime(u64);

/// Point on the wall clock, in milliseconds after 1970. For people, and across boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Walltime(u64);

/// Span of time, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Span(u64);

impl Boottime {
    /// Point from nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Boottime(nanos)
    }
    /// Nanoseconds after boot.
    pub const fn nanos(self) -> u64 {
        self.0
    }
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Boottime) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Walltime {
    /// Point from milliseconds after 1970.
    pub const fn from_millis(millis: u64) -> Self {
        Walltime(millis)
    }
    /// Milliseconds after 1970.
    pub const fn millis(self) -> u64 {
        self.0
    }
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Walltime) -> Span {
        Span(self.0.saturating_sub(earlier.0).saturating_mul(1_000_000))
    }
}

impl Span {
    /// Zero.
    pub const ZERO: Span = Span(0);

    /// Span from whole seconds; saturates on overflow.
    pub const fn from_secs(seconds: u64) -> Self {
        Span(seconds.saturating_mul(1_000_000_000))
    }
    /// Span from nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Span(nanos)
    }
    /// Number of nanoseconds.
    pub const fn nanos(self) -> u64 {
        self.0
    }
    /// Whole milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
    /// Whole seconds, rounded down.
    pub const fn secs(self) -> u64 {
        self.0 / 1_000_000_000
    }
    /// Seconds with a fraction, for records and for people.
    #[allow(clippy::cast_precision_loss)]
    pub fn secs_f64(self) -> f64 {
        self.millis() as f64 / 1000.0
    }
    /// Product with a factor; saturates on overflow.
    pub const fn times(self, factor: u64) -> Self {
        Span(self.0.saturating_mul(factor))
    }
}

impl Add<Span> for Boottime {
    type Output = Boottime;
    fn add(self, span: Span) -> Boottime {
        Boottime(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Boottime {
    type Output = Boottime;
    fn sub(self, span: Span) -> Boottime {
        Boottime(self.0.saturating_sub(span.0))
    }
}

impl Add<Span> for Walltime {
    type Output = Walltime;
    fn add(self, span: Span) -> Walltime {
        Walltime(self.0.saturating_add(span.millis()))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl Sub<Span> for Walltime {
    type Output = Walltime;
    fn sub(self, span: Span) -> Walltime {
        Walltime(self.0.saturating_sub(span.millis()))
    }
}

/// Longest span that may be requested, in seconds: ten years.
const LONGEST: u64 = 10 * 365 * 86_400;

/// Error about a text that is not a span of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotASpan(String);

impl fmt::Display for NotASpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a duration: write whole seconds, or a number with s, m, h, d or y, ten years at most",
            self.0
        )
    }
}

impl std::error::Error for NotASpan {}

/// Puppet's format of a duration (lib/puppet/settings/duration_setting.rb): whole seconds, or a
/// whole number and one of the units y, d, h, m, s.
impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let wrong = || NotASpan(text.chars().take(40).collect());
        let (digits, unit) = match text.char_indices().last() {
            Some((at, 's')) => (&text[..at], 1),
            Some((at, 'm')) => (&text[..at], 60),
            Some((at, 'h')) => (&text[..at], 3600),
            Some((at, 'd')) => (&text[..at], 86_400),
            Some((at, 'y')) => (&text[..at], 365 * 86_400),
            _ => (text, 1),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        match number.checked_mul(unit) {
            Some(seconds) if seconds <= LONGEST => Ok(Span::from_secs(seconds)),
            _ => Err(wrong()),
        }
    }
}

/// Notation for people: `0s`, `1.5s`, `2m`, `1m58s`, `1h`, `2d3h`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100_000_000;
        let seconds = self.secs();
        if seconds < 10 && !tenths.is_multiple_of(10) {
            return write!(f, "{}.{}s", seconds, tenths % 10);
        }
        let parts = [
            (seconds / 86_400, "d"),
            (seconds / 3600 % 24, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
        ];
        let from = parts.iter().position(|(n, _)| *n > 0).unwrap_or(3);
        let mut written = false;
        for (n, unit) in parts.iter().skip(from).take(2) {
            if *n > 0 || !written {
                write!(f, "{n}{unit}")?;
                written = true;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_puppet_reads() {
        for (text, seconds) in [
            ("0", 0),
            ("120", 120),
            ("90s", 90),
            ("2m", 120),
            ("1h", 3600),
            ("1d", 86_400),
            ("1y", 31_536_000),
            ("10y", 315_360_000),
        ] {
            assert_eq!(text.parse(), Ok(Span::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "+1",
            "1.5",
            "1 m",
            "2x",
            "é",
            "99999999999999999999",
            "11y",
            "315360001",
        ] {
            let wrong = text.parse::<Span>().expect_err(text).to_string();
            let begins = format!("'{text}' is not a duration: ");
            assert!(wrong.starts_with(&begins), "{wrong}");
        }
    }

    #[test]
    fn speaks_as_people_do() {
        for (nanos, text) in [
            (0, "0s"),
            (1_500_000_000, "1.5s"),
            (9_900_000_000, "9.9s"),
            (10_500_000_000, "10s"),
            (12_500_000_000, "12s"),
            (118_000_000_000, "1m58s"),
            (120_000_000_000, "2m"),
            (3_600_000_000_000, "1h"),
            (3_605_000_000_000, "1h"),
            (90_000_000_000_000, "1d1h"),
        ] {
            assert_eq!(Span::from_nanos(nanos).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}") {
            let _ = text.parse::<Span>();
        }

        #[test]
        fn whole_seconds_come_back(seconds in 0..=LONGEST) {
            prop_assert_eq!(seconds.to_string().parse(), Ok(Span::from_secs(seconds)));
            prop_assert_eq!(format!("{seconds}s").parse(), Ok(Span::from_secs(seconds)));
        }
    }

    #[test]
    fn one_clock_counts_nanoseconds_and_the_other_milliseconds() {
        let span = Span::from_nanos(2_345_678_901);
        assert_eq!((span.secs(), span.millis()), (2, 2345));
        assert!((span.secs_f64() - 2.345).abs() < 1e-9);
        let wall = Walltime::from_millis(10_000);
        assert_eq!((wall + span).millis(), 12_345);
        assert_eq!((wall - span).millis(), 7_655);
        assert_eq!((wall + span).since(wall), Span::from_nanos(2_345_000_000));
        let boot = Boottime::from_nanos(7);
        assert_eq!((boot + span).since(boot), span);
        assert_eq!(boot.since(boot + span), Span::ZERO);
        assert_eq!(span.times(2).nanos(), 4_691_357_802);
    }
}
