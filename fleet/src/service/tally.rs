//! Numbers about the service, written for `again metrics`.

use std::io;
use std::path::{Path, PathBuf};

use again_base::model::{Boottime, Span, Walltime};
use again_base::sys::file::{OnDisk, atomic_write};
use rustix::fs::OFlags;

use super::publisher::Counts;

/// Names of the numbers. Times are milliseconds of the wall clock after 1970, 0 for none.
const KEYS: [&str; 13] = [
    "sent", "spooled", "dropped", "down", "triggers", "results", "oldest", "running", "waiting",
    "since", "rejected", "troubles", "ended",
];
/// Values of the numbers, in the order of `KEYS`.
pub type Numbers = [u64; KEYS.len()];
/// Shortest time between two checks of the numbers, apart from beats.
const PAUSE: Span = Span::from_secs(5);

/// File with the numbers. The time in it shows that the service is alive.
pub struct Tally {
    path: PathBuf,
    written: Numbers,
    next: Boottime,
}

impl Tally {
    /// Opens the file in this directory. Returns the counts of earlier services too.
    pub fn open(directory: &Path) -> (Tally, Counts) {
        let path = directory.join("counts.json");
        let text = again_base::sys::file::read_regular(&path, 4096, OFlags::NOFOLLOW.bits() as i32);
        let counts = text
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        let tally = Tally {
            path,
            written: [u64::MAX; KEYS.len()],
            next: Boottime::default(),
        };
        (tally, counts.unwrap_or_default())
    }

    /// Whether the numbers are due: at a beat, or some seconds after the last check.
    pub fn is_due(&mut self, is_beat: bool, now: Boottime) -> bool {
        let is_due = is_beat || self.next <= now;
        if is_due {
            self.next = now + PAUSE;
        }
        is_due
    }

    /// Writes the numbers at a beat, or if they have changed. Returns whether they were written.
    /// Readers see the old text or the new one.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn write(&mut self, numbers: Numbers, is_beat: bool, at: Walltime) -> io::Result<bool> {
        if !is_beat && numbers == self.written {
            return Ok(false);
        }
        let mut text = format!("{{\"at\":{}", at.millis());
        for (key, number) in KEYS.iter().zip(numbers) {
            text += &format!(",\"{key}\":{number}");
        }
        text.push('}');
        atomic_write(&self.path, text.as_bytes(), 0o644, OnDisk::Nothing)?;
        self.written = numbers;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    #[test]
    fn what_changed_is_written_at_a_beat_or_soon_and_is_known_to_the_next_service() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut tally, counts) = Tally::open(directory.path());
        assert_eq!(counts, Counts::default());
        let at = |seconds| Boottime::from_nanos(0) + Span::from_secs(seconds);
        assert!(tally.is_due(false, at(100)));
        assert!(!tally.is_due(false, at(104)) && tally.is_due(true, at(104)));
        assert!(!tally.is_due(false, at(108)) && tally.is_due(false, at(109)));

        let read = || {
            let text = fs::read(directory.path().join("counts.json")).expect("written");
            serde_json::from_slice::<BTreeMap<String, u64>>(&text).expect("numbers")
        };
        let mut numbers = Numbers::default();
        let mut write = |numbers, is_beat, millis| {
            let at = Walltime::from_millis(millis);
            tally.write(numbers, is_beat, at).expect("written");
        };
        write(numbers, false, 1);
        write(numbers, false, 2);
        assert_eq!(read()["at"], 1);
        write(numbers, true, 3);
        assert_eq!(read()["at"], 3);
        numbers[..3].copy_from_slice(&[5, 70, 1]);
        write(numbers, false, 4);
        assert_eq!((read()["at"], read()["sent"], read().len()), (4, 5, 14));

        let (_, counts) = Tally::open(directory.path());
        assert_eq!((counts.sent, counts.dropped), (5, 1));
        fs::write(directory.path().join("counts.json"), "garbage").expect("written");
        assert_eq!(Tally::open(directory.path()).1, Counts::default());
    }
}
