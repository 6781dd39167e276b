//! A waiter's name in ps(1).
#![allow(unsafe_code)]

/// Space for the title in bytes, which the requester reserves as the last argument.
pub const ROOM: usize = 160;

/// Replaces the command line of this process with `title`, cut to the available space.
///
/// Nothing may use the C runtime's argv afterwards; our arguments were copied.
pub fn set(title: &str) {
    let Ok(stat) = std::fs::read("/proc/self/stat") else {
        return;
    };
    let Some((start, end)) = argument_area(&stat) else {
        return;
    };
    // The last byte stays NUL, which shows the kernel that this is still a plain command line
    // (proc_pid_cmdline(5)).
    let length = title.len().min(end - start - 1);
    let area: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the kernel says that the argument strings of this process lie
    // there; they are on our own stack, writable, and nobody refers to them.
    unsafe {
        std::ptr::write_bytes(area, 0, end - start);
        std::ptr::copy_nonoverlapping(title.as_ptr(), area, length);
    }
}

/// Sets the short name, at most 15 bytes: PR_SET_NAME(2const).
pub fn set_short(name: &std::ffi::CStr) {
    let _ = nix::sys::prctl::set_name(name);
}

/// Fields 48 and 49 of proc_pid_stat(5): arg_start and arg_end.
fn argument_area(stat: &[u8]) -> Option<(usize, usize)> {
    let close = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(45);
    let start: usize = fields.next()?.parse().ok()?;
    let end: usize = fields.next()?.parse().ok()?;
    (start != 0 && end > start + 1).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_argument_area_of_this_process() {
        let stat = std::fs::read("/proc/self/stat").expect("/proc");
        let (start, end) = argument_area(&stat).expect("an area");
        let cmdline = std::fs::read("/proc/self/cmdline").expect("/proc");
        assert_eq!(end - start, cmdline.len());
        assert_eq!(argument_area(b"1 (a) S"), None);
    }
}
