//! Wall-clock times for people (local) and for machines (UTC, RFC 3339).
#![allow(unsafe_code)]

use crate::model::Walltime;

fn broken_down(at: Walltime, utc: bool) -> Option<libc::tm> {
    // Its type is left to inference: libc's name for it is about to change with musl.
    let seconds = (at.millis() / 1000).try_into().ok()?;
    // SAFETY: tm is plain data; both conversions fill it in or return null.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: two valid pointers that outlive the call.
    let done = unsafe {
        if utc {
            libc::gmtime_r(&raw const seconds, &raw mut tm)
        } else {
            libc::localtime_r(&raw const seconds, &raw mut tm)
        }
    };
    (!done.is_null()).then_some(tm)
}

/// `2026-11-21 14:03:07`, in the machine's time zone.
pub fn local(at: Walltime) -> String {
    broken_down(at, false).map_or_else(
        || format!("@{}", at.millis() / 1000),
        |tm| {
            format!(
                "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
                tm.tm_year + 1900,
                tm.tm_mon + 1,
                tm.tm_mday,
                tm.tm_hour,
                tm.tm_min,
                tm.tm_sec
            )
        },
    )
}

/// `2026-11-21T14:03:07.123Z`.
pub fn utc(at: Walltime) -> String {
    broken_down(at, true).map_or_else(
        || format!("@{}", at.millis() / 1000),
        |tm| {
            format!(
                "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
                tm.tm_year + 1900,
                tm.tm_mon + 1,
                tm.tm_mday,
                tm.tm_hour,
                tm.tm_min,
                tm.tm_sec,
                at.millis() % 1000
            )
        },
    )
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
