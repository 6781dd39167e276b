//! Giving memory back while a waiter waits.
#![allow(unsafe_code)]

/// Tells the kernel that the clean pages of our own files are not needed.
///
/// They are read again from the page cache when something happens, hours later
/// perhaps; until then a waiter holds little more than its stack.
pub fn give_back_clean_pages() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return;
    };
    for (start, end) in maps.lines().filter_map(clean_mapping) {
        // SAFETY: a private file mapping that is not writable and never was
        // written to: dropped pages come back from the file with the same bytes.
        unsafe {
            libc::madvise(
                std::ptr::with_exposed_provenance_mut(start),
                end - start,
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// Start and end of a mapping of a file that is executable or was never made
/// writable. Read-only data that the linker relocates at start-up is dirty and
/// must stay: it is mapped without execute permission, so it is left alone.
fn clean_mapping(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let inode = words.nth(2)?;
    if permissions != "r-xp" || inode == "0" {
        return None;
    }
    Some((
        usize::from_str_radix(start, 16).ok()?,
        usize::from_str_radix(end, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_executable_file_mappings() {
        let text = "55d0-55e0 r-xp 00001000 fe:00 42 /usr/local/bin/again";
        assert_eq!(clean_mapping(text), Some((0x55d0, 0x55e0)));
        assert_eq!(clean_mapping("55d0-55e0 rw-p 0 fe:00 42 /a"), None);
        assert_eq!(clean_mapping("55d0-55e0 r--p 0 fe:00 42 /a"), None);
        assert_eq!(clean_mapping("7ffd-7fff r-xp 0 00:00 0 [vdso]"), None);
        assert_eq!(clean_mapping(""), None);
    }

    #[test]
    fn the_program_goes_on_afterwards() {
        give_back_clean_pages();
        assert_eq!([3, 1, 2].iter().max(), Some(&3));
    }
}
