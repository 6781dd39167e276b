//! The spool: files in which runs leave their events. The directory and the files belong to root.
//! The service only reads them; the executor marks a file whose events are published, and removes
//! it later.
//!
//! A file is named `MILLIS-RUN`, and `MILLIS-RUN@told` once all of its events are published. A run
//! holds the lock of its file until it ends.

/// Requests that wait on disk for the service.
pub mod requests;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use again_base::model::{Span, Walltime};
use rustix::fs::OFlags;

use crate::policy::lineage::merged;
use crate::wire::event::{Begun, Event, Line};
use crate::wire::lineage::Lineage;
use crate::wire::name::Id;

/// Bytes of a file that are read at a time. No line is longer.
pub const LONGEST_READ: usize = 256 << 10;
/// Largest number of files that are read; runs leave fewer.
const MOST_FILES: usize = 1000;
/// Largest size of a file, in bytes; runs stop writing before that.
const LARGEST: u64 = 16 << 20;
/// Time for which a file is kept after all of its events were published, by the wall clock.
const KEPT: Span = Span::from_secs(3600);
/// Suffix of the name of a file whose events are published.
const TOLD: &str = "@told";

/// Directory of the spool.
#[derive(Debug, Clone)]
pub struct Spool(pub PathBuf);

/// File of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunFile {
    /// Time of creation, in milliseconds of the wall clock since 1970.
    pub at: u64,
    /// Id of the run.
    pub run: Id,
    /// Whether all of its events are published.
    is_told: bool,
}

/// Events of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEvents {
    /// Start of the run.
    pub begun: Begun,
    /// Events of the run.
    pub events: Vec<Event>,
}

/// A part of a file.
pub struct Read {
    /// The bytes from the offset on.
    pub bytes: Vec<u8>,
    /// Whether this is the end of the file and its run has ended.
    pub is_last: bool,
}

impl RunFile {
    /// The file with this name; `None` if it is not in the spool's format.
    fn of(name: &str) -> Option<RunFile> {
        let (name, is_told) = match name.strip_suffix(TOLD) {
            Some(name) => (name, true),
            None => (name, false),
        };
        let (at, run) = name.split_once('-')?;
        Some(RunFile {
            at: at.parse().ok()?,
            run: run.parse().ok()?,
            is_told,
        })
    }

    fn name(&self) -> String {
        let RunFile { at, run, is_told } = self;
        format!("{at}-{run}{}", if *is_told { TOLD } else { "" })
    }
}

impl Spool {
    /// Files whose events are not published yet, oldest first, with the size of each in bytes.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn waiting(&self) -> io::Result<Vec<(RunFile, u64)>> {
        let files = self.files()?.into_iter().filter(|file| !file.is_told);
        // A run that makes room for its own file may have removed one.
        let sized = files.filter_map(|file| {
            let size = fs::symlink_metadata(self.path_of(&file)).ok()?.len();
            Some((file, size))
        });
        Ok(sized.collect())
    }

    /// All files, oldest first; none if the directory does not exist.
    fn files(&self) -> io::Result<Vec<RunFile>> {
        let entries = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries.take(MOST_FILES) {
            let name = entry?.file_name();
            // Files with names in another form are ignored.
            let file = name.to_str().and_then(RunFile::of);
            files.extend(file.filter(|file| Some(&*file.name()) == name.to_str()));
        }
        files.sort();
        Ok(files)
    }

    fn path_of(&self, file: &RunFile) -> PathBuf {
        self.0.join(file.name())
    }

    fn open(&self, file: &RunFile) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::options()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(self.path_of(file))?;
        let found = opened.metadata()?;
        let me = rustix::process::geteuid().as_raw();
        if !found.is_file() || ![0, me].contains(&found.uid()) {
            return Err(io::Error::other("it is not a file that a run has left"));
        }
        Ok(opened)
    }

    /// Bytes of a file from an offset on, at most [`LONGEST_READ`].
    ///
    /// # Errors
    /// The file cannot be read, or was not left by a run.
    pub fn read(&self, file: &RunFile, offset: u64) -> io::Result<Read> {
        let file = self.open(file)?;
        // Taken before the bytes are read, so that bytes written later are not missed. The lock is
        // released when the file is closed.
        let is_over = file.try_lock_shared().is_ok();
        let mut bytes = vec![0; LONGEST_READ];
        let length = file.read_at(&mut bytes, offset)?;
        bytes.truncate(length);
        let end = offset + length as u64;
        let is_last = is_over && file.metadata()?.len() <= end;
        Ok(Read { bytes, is_last })
    }

    /// Start of a run, from the first line of its file. Its origins are unknown if the line was
    /// lost, for example in a power failure.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn begun(&self, file: &RunFile) -> io::Result<Begun> {
        let mut line = Vec::new();
        let mut lines = BufReader::new(self.open(file)?.take(LONGEST_READ as u64));
        lines.read_until(b'\n', &mut line)?;
        let Ok(Line::Begun(mut begun)) = Line::read(line.trim_ascii_end()) else {
            return Ok(Begun {
                at: file.at,
                environment: String::new(),
                puppet: String::new(),
                origins: Lineage::default(),
                unknown: true,
                lost: 0,
            });
        };
        begun.origins = merged([&begun.origins]);
        Ok(begun)
    }

    /// Events of a run, from its file; `None` if there is no such file.
    ///
    /// # Errors
    /// The spool cannot be read, or others than its owner may write to it.
    pub fn events(&self, run: &Id) -> io::Result<Option<RunEvents>> {
        self.check()?;
        let Some(file) = self.files()?.into_iter().find(|file| file.run == *run) else {
            return Ok(None);
        };
        let lines = BufReader::new(self.open(&file)?.take(LARGEST)).split(b'\n');
        let mut events = Vec::new();
        for line in lines {
            if let Ok(Line::Event(event)) = Line::read(&line?) {
                events.push(event);
            }
        }
        let begun = self.begun(&file)?;
        Ok(Some(RunEvents { begun, events }))
    }

    /// Checks that only root may write to the directory.
    fn check(&self) -> io::Result<()> {
        let found = match fs::symlink_metadata(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if !found.is_dir() {
            return Err(io::Error::other("it is not a directory; remove it"));
        }
        let me = rustix::process::geteuid().as_raw();
        if found.uid() == me && found.mode() & 0o022 == 0 {
            return Ok(());
        }
        Err(io::Error::other(
            "others than root may write there; run 'chown root' and 'chmod go-w' on it",
        ))
    }

    /// Marks the files of runs whose events are all published. A run that is still running is
    /// skipped.
    ///
    /// # Errors
    /// A file cannot be renamed; the other files are marked.
    pub fn mark(&self, runs: &[Id]) -> io::Result<()> {
        let is_asked = |file: &RunFile| !file.is_told && runs.contains(&file.run);
        self.each(is_asked, |file| {
            if self.open(file)?.try_lock_shared().is_ok() {
                let told = RunFile {
                    is_told: true,
                    ..file.clone()
                };
                fs::rename(self.path_of(file), self.path_of(&told))?;
            }
            Ok(())
        })
    }

    /// Removes the files that were marked more than an hour ago.
    ///
    /// # Errors
    /// A file cannot be removed; the other files are removed.
    pub fn clear(&self, now: Walltime) -> io::Result<()> {
        self.each(
            |file| file.is_told,
            |file| {
                let path = self.path_of(file);
                // The rename that marks a file sets its ctime.
                let marked = fs::symlink_metadata(&path)?.ctime();
                let marked = Walltime::from_millis(u64::try_from(marked).unwrap_or(0) * 1000);
                if marked + KEPT < now {
                    fs::remove_file(path)?;
                }
                Ok(())
            },
        )
    }

    /// Calls `act` for each selected file, and returns the first error. A missing file is not an
    /// error: a run that makes room may have removed it.
    fn each(
        &self,
        is_one: impl Fn(&RunFile) -> bool,
        act: impl Fn(&RunFile) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check()?;
        let files = self.files()?.into_iter().filter(|file| is_one(file));
        let failed = files.filter_map(|file| match act(&file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Some(io::Error::other(format!("{}: {e}", file.name())))
            }
            _ => None,
        });
        let failed: Vec<io::Error> = failed.collect();
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::wire::event::tests::{batch, event};
    use crate::wire::lineage::{Cause, Origin};

    /// A run that goes on as long as the file is open.
    fn run(spool: &Spool, number: u128, lines: &[Line]) -> File {
        let path = spool.0.join(format!("{number}-{}", Id::from_bits(number)));
        let mut file = File::create_new(path).expect("made");
        file.try_lock().expect("locked");
        for line in lines {
            let text = serde_json::to_string(line).expect("JSON");
            writeln!(file, "{text}").expect("written");
        }
        file
    }

    fn names(spool: &Spool) -> Vec<String> {
        let files = spool.files().expect("a directory");
        files.iter().map(RunFile::name).collect()
    }

    #[test]
    fn files_of_runs_that_are_over_are_marked_and_removed_an_hour_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool(dir.path().to_owned());
        let goes_on = run(&spool, 7, &[]);
        drop(run(&spool, 8, &[]));
        let runs = [7, 8, 9].map(Id::from_bits);
        spool.mark(&runs).expect("marked");
        let [seven, eight] = [7, 8].map(|n| format!("{n}-{}", Id::from_bits(n)));
        assert_eq!(names(&spool), [seven.clone(), format!("{eight}@told")]);
        let waiting = spool.waiting().expect("a directory");
        assert_eq!(
            waiting.iter().map(|(file, _)| file.at).collect::<Vec<_>>(),
            [7]
        );
        drop(goes_on);
        spool.mark(&runs).expect("marked");
        let now = again_base::sys::clock::walltime();
        spool.clear(now + Span::from_secs(3500)).expect("cleared");
        assert_eq!(names(&spool).len(), 2);
        spool.clear(now + Span::from_secs(3700)).expect("cleared");
        assert_eq!(names(&spool), [""; 0]);
    }

    #[test]
    fn events_are_found_also_in_a_marked_file_with_how_their_run_began() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool(dir.path().to_owned());
        let origin = |id| Origin {
            id: Id::from_bits(id),
            cause: Cause::Event,
            path: vec![batch().node],
        };
        let begun = Begun {
            origins: Lineage(vec![origin(2), origin(1), origin(1)]),
            ..batch().begun
        };
        drop(run(
            &spool,
            7,
            &[
                Line::Begun(begun.clone()),
                Line::Event(event(1)),
                Line::Event(event(2)),
            ],
        ));
        let id = Id::from_bits(7);
        let left = RunEvents {
            begun: Begun {
                origins: Lineage(vec![origin(1), origin(2)]),
                ..begun
            },
            events: vec![event(1), event(2)],
        };
        for is_marked in [false, true] {
            if is_marked {
                spool.mark(std::slice::from_ref(&id)).expect("marked");
            }
            assert_eq!(
                spool.events(&id).expect("a good spool").as_ref(),
                Some(&left)
            );
            assert_eq!(spool.events(&Id::from_bits(8)).expect("a good spool"), None);
        }
        assert_eq!(
            Spool(dir.path().join("none")).events(&id).expect("none"),
            None
        );
        let link = dir.path().join(format!("9-{}", Id::from_bits(9)));
        std::os::unix::fs::symlink("/etc/passwd", link).expect("linked");
        assert!(spool.events(&Id::from_bits(9)).is_err());
    }

    #[test]
    fn one_bad_file_keeps_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool(dir.path().to_owned());
        fs::create_dir(dir.path().join(format!("7-{}@told", Id::from_bits(7)))).expect("made");
        drop(run(&spool, 8, &[]));
        spool.mark(&[Id::from_bits(8)]).expect("marked");
        let now = again_base::sys::clock::walltime() + Span::from_secs(3700);
        let error = spool.clear(now).expect_err("a directory").to_string();
        assert!(error.starts_with("7-"), "{error}");
        assert_eq!(names(&spool).len(), 1);
    }

    #[test]
    fn spool_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool(dir.path().to_owned());
        drop(run(&spool, 7, &[Line::Event(event(1))]));
        for mode in [0o770, 0o707] {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).expect("its mode");
            let errors = [
                spool.events(&Id::from_bits(7)).map(drop),
                spool.mark(&[Id::from_bits(7)]),
                spool.clear(Walltime::from_millis(0)),
            ];
            for error in errors {
                assert!(error.expect_err("refused").to_string().contains("chmod"));
            }
        }
    }
}
