//! Wall-clock times for people (local) and for machines (UTC, RFC 3339).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::model::Walltime;

fn broken_down(at: Walltime, utc: bool) -> Option<libc::tm> {
    // Its type is left to inference: libc's name for it is about to change with musl.
    let seconds = (at.millis() / 1000).try_into().ok()?;
    let mut tm = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: two valid pointers that outlive the call, which fills tm in or returns null.
    unsafe {
        let done = if utc {
            libc::gmtime_r(&raw const seconds, tm.as_mut_ptr())
        } else {
            libc::localtime_r(&raw const seconds, tm.as_mut_ptr())
        };
        (!done.is_null()).then(|| tm.assume_init())
    }
}

fn text(at: Walltime, utc: bool, separator: char) -> String {
    let Some(tm) = broken_down(at, utc) else {
        return format!("@{}", at.millis() / 1000);
    };
    let (year, month, day) = (tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday);
    let (hour, minute, second) = (tm.tm_hour, tm.tm_min, tm.tm_sec);
    format!("{year:04}-{month:02}-{day:02}{separator}{hour:02}:{minute:02}:{second:02}")
}

/// `2026-11-21 14:03:07`, in the machine's time zone.
pub fn local(at: Walltime) -> String {
    text(at, false, ' ')
}

/// `2026-11-21T14:03:07.123Z`.
pub fn utc(at: Walltime) -> String {
    format!("{}.{:03}Z", text(at, true, 'T'), at.millis() % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_rfc_3339() {
        let at = Walltime::from_millis(1_795_219_387_045);
        assert_eq!(utc(at), "2026-11-21T00:03:07.045Z");
    }
}
