//! Returns memory to the kernel while a waiter waits.
#![allow(unsafe_code)]

use libc::{Elf64_Ehdr, Elf64_Phdr, PF_W, PT_LOAD};
use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout};

use again_base::sys::start::auxiliary;

/// poll(2), for a long sleep. Before it, the kernel is told that the clean pages of our own program
/// are not needed. They are read again from the page cache when something happens, perhaps hours
/// later; until then a waiter uses little more than its stack.
///
/// # Errors
/// Errors of poll(2).
pub fn poll_without_pages(fds: &mut [PollFd<'_>], timeout: PollTimeout) -> nix::Result<()> {
    // Computed before the first part is returned. After that only functions of the C library are
    // called: code that runs loads its pages again, with all that surround them.
    let mut parts = [(0, 0); 4];
    for (place, part) in parts.iter_mut().zip(clean_parts(start(), headers(), PAGE)) {
        *place = part;
    }
    let timeout = timeout.into();
    let mut at = 0;
    while at < parts.len() {
        let (start, end) = parts[at];
        // SAFETY: part of a private mapping of a file that is not writable and never
        // was: dropped pages come back from the file with the same bytes. An empty
        // part is none.
        unsafe {
            libc::madvise(
                std::ptr::with_exposed_provenance_mut(start),
                end - start,
                libc::MADV_DONTNEED,
            );
        }
        at += 1;
    }
    // SAFETY: a slice of pollfd, which is what PollFd is (repr(transparent)), and its length.
    let done = unsafe { libc::poll(fds.as_mut_ptr().cast(), fds.len() as libc::nfds_t, timeout) };
    Errno::result(done).map(drop)
}

/// Maximum page size of any supported machine; a multiple does no harm.
const PAGE: usize = if cfg!(target_arch = "x86_64") {
    4096
} else {
    65536
};

/// Address of the program's first byte. Not every linker writes a PT_PHDR that contains it.
fn start() -> usize {
    #[allow(non_upper_case_globals)]
    unsafe extern "C" {
        /// Symbol that every linker of ELF files defines.
        static __ehdr_start: Elf64_Ehdr;
    }
    (&raw const __ehdr_start).addr()
}

/// Program headers, as the kernel mapped them: getauxval(3), AT_PHDR.
fn headers() -> &'static [Elf64_Phdr] {
    let (at, count) = (auxiliary(libc::AT_PHDR), auxiliary(libc::AT_PHNUM));
    if at == 0 {
        return &[];
    }
    // SAFETY: the kernel says that as many headers lie there; they stay mapped, and
    // nobody writes to them.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), count) }
}

/// Start and end of whole pages that were mapped without permission to write. Data that the linker
/// relocates at start-up is mapped with write permission, and dirty: it must stay.
fn clean_parts(
    start: usize,
    headers: &[Elf64_Phdr],
    page: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let loaded = |header: &&Elf64_Phdr| header.p_type == PT_LOAD;
    let first = headers.iter().filter(loaded).find(|one| one.p_offset == 0);
    let base = first.map(|first| start.wrapping_sub(first.p_vaddr as usize));
    headers
        .iter()
        .filter(move |header| loaded(header) && header.p_flags & PF_W == 0)
        .filter_map(move |header| {
            let start = base?.wrapping_add(header.p_vaddr as usize);
            let end = start.checked_add(header.p_filesz as usize)?;
            // Rounded inwards, so that no adjacent page is affected.
            let (start, end) = (start.next_multiple_of(page), end - end % page);
            (start < end).then_some((start, end))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_what_was_never_writable() {
        let parts: Vec<_> = clean_parts(start(), headers(), PAGE).collect();
        assert!(!parts.is_empty());
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        let address = |hex: &str| usize::from_str_radix(hex, 16).expect("hexadecimal");
        for (start, end) in parts {
            let line = maps
                .lines()
                .find(|line| {
                    let (from, rest) = line.split_once('-').expect("a range");
                    let to = rest.split(' ').next().expect("its end");
                    address(from) <= start && end <= address(to)
                })
                .unwrap_or_else(|| panic!("{start:x}-{end:x} is not in one mapping: {maps}"));
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            assert!(words[1] == "r--p" || words[1] == "r-xp", "{line}");
            assert_ne!(words[4], "0", "{line}");
        }
    }

    #[test]
    fn without_headers_there_is_nothing_to_give() {
        assert_eq!(clean_parts(start(), &[], PAGE).count(), 0);
    }

    #[test]
    fn the_program_goes_on_afterwards() {
        assert_eq!(poll_without_pages(&mut [], PollTimeout::ZERO), Ok(()));
        assert_eq!([3, 1, 2].iter().max(), Some(&3));
    }
}
