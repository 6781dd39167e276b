//! Wall-clock times for people (local) and for machines (UTC, RFC 3339).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use crate::model::Walltime;

/// Offset of the machine's time zone from UTC at a time. `UtcOffset::local_offset_at` is not used
/// because it fails in a process with several threads.
fn local_offset(at: OffsetDateTime) -> Option<UtcOffset> {
    let seconds = at.unix_timestamp();
    let mut tm = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: two valid pointers that outlive the call, which fills tm in or returns null.
    let tm = unsafe {
        let done = libc::localtime_r(&raw const seconds, tm.as_mut_ptr());
        (!done.is_null()).then(|| tm.assume_init())
    }?;
    UtcOffset::from_whole_seconds(tm.tm_gmtoff.try_into().ok()?).ok()
}

/// Time in UTC; `None` after the year 9999.
fn in_utc(at: Walltime) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp((at.millis() / 1000).try_into().ok()?).ok()
}

fn text(at: Walltime, time: Option<OffsetDateTime>, separator: char) -> String {
    let Some(time) = time else {
        return format!("@{}", at.millis() / 1000);
    };
    let (hour, minute, second) = time.to_hms();
    format!(
        "{}{separator}{hour:02}:{minute:02}:{second:02}",
        time.date()
    )
}

/// Text such as `2026-11-21 14:03:07`, in the machine's time zone.
pub fn local(at: Walltime) -> String {
    let time = in_utc(at).and_then(|time| time.checked_to_offset(local_offset(time)?));
    text(at, time, ' ')
}

/// Text such as `2026-11-21T14:03:07.123Z`.
pub fn utc(at: Walltime) -> String {
    format!("{}.{:03}Z", text(at, in_utc(at), 'T'), at.millis() % 1000)
}

/// Parses exactly the format that [`utc`] writes.
pub fn from_utc(text: &str) -> Option<Walltime> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    let millis = time.unix_timestamp_nanos() / 1_000_000;
    let at = Walltime::from_millis(millis.try_into().ok()?);
    (utc(at) == text).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn writes_rfc_3339() {
        let at = Walltime::from_millis(1_795_219_387_045);
        assert_eq!(utc(at), "2026-11-21T00:03:07.045Z");
    }

    #[test]
    fn time_without_a_date_is_the_number_of_its_second() {
        for millis in [253_402_300_800_000, u64::MAX] {
            let at = Walltime::from_millis(millis);
            assert_eq!(local(at), format!("@{}", millis / 1000));
        }
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(at in 0u64..253_402_300_800_000) {
            let at = Walltime::from_millis(at);
            prop_assert_eq!(from_utc(&utc(at)), Some(at));
        }

        #[test]
        fn any_text_is_a_time_or_none(text in "[0-9TZ:. -]{0,30}|\\PC{0,30}") {
            let _ = from_utc(&text);
        }
    }
}
