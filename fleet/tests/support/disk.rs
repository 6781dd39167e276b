//! Disk that can crash. The contents of a file survive once the file was synced, a name once its
//! directory was synced. For everything else, the random numbers decide whether it survives, and
//! how much of a file does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use again_fleet::outbox::Disk;

use again_test_support::Dice;

#[derive(Debug, Clone, Default)]
struct Content {
    now: Vec<u8>,
    synced: Vec<u8>,
}

/// Disk whose clones share one state, so that a test can examine it from outside.
#[derive(Debug, Clone, Default)]
pub struct CrashDisk(Rc<RefCell<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    directories: BTreeSet<String>,
    contents: Vec<Content>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    /// Number of steps requested so far.
    steps: usize,
    /// Step before which the machine stops.
    stops: Option<usize>,
}

impl CrashDisk {
    /// Returns the number of steps requested so far.
    #[allow(dead_code)]
    pub fn steps(&self) -> usize {
        self.0.borrow().steps
    }

    /// Stops before the given step: this step and all later ones fail, and change nothing.
    #[allow(dead_code)]
    pub fn stop_before(&self, step: usize) {
        self.0.borrow_mut().stops = Some(step);
    }

    /// Crashes: discards everything that does not survive; the disk works again.
    pub fn crash(&self, dice: &mut Dice) {
        let inner = &mut *self.0.borrow_mut();
        inner.stops = None;
        let all: BTreeSet<String> = inner
            .names
            .keys()
            .chain(inner.synced_names.keys())
            .cloned()
            .collect();
        for name in all {
            let survives = if dice.permille(500) {
                &inner.names
            } else {
                &inner.synced_names
            };
            match survives.get(&name).copied() {
                Some(file) => inner.names.insert(name, file),
                None => inner.names.remove(&name),
            };
        }
        inner.synced_names = inner.names.clone();
        for content in &mut inner.contents {
            if content.now != content.synced {
                let whole = content.now.len() as u64;
                match dice.below(3) {
                    0 => content.now = content.synced.clone(),
                    1 => content
                        .now
                        .truncate(usize::try_from(dice.below(whole + 1)).expect("small")),
                    _ => {}
                }
                content.synced = content.now.clone();
            }
        }
    }

    fn step(&self) -> io::Result<std::cell::RefMut<'_, Inner>> {
        let mut inner = self.0.borrow_mut();
        inner.steps += 1;
        if inner.stops.is_some_and(|stops| inner.steps > stops) {
            return Err(io::Error::other("the machine has stopped"));
        }
        Ok(inner)
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn is_in(directory: &str, path: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.starts_with('/'))
}

impl Disk for CrashDisk {
    fn make(&mut self, directory: &str) -> io::Result<()> {
        self.step()?.directories.insert(directory.to_owned());
        Ok(())
    }

    fn list(&mut self, directory: &str) -> io::Result<Vec<String>> {
        let inner = self.step()?;
        let names = inner.names.keys().filter(|path| is_in(directory, path));
        Ok(names
            .map(|path| path[directory.len() + 1..].to_owned())
            .collect())
    }

    fn read(&mut self, file: &str, most: usize) -> io::Result<Vec<u8>> {
        let inner = self.step()?;
        let file = *inner.names.get(file).ok_or_else(missing)?;
        let bytes = &inner.contents[file].now;
        Ok(bytes[..bytes.len().min(most + 1)].to_vec())
    }

    fn write(&mut self, file: &str, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.step()?;
        if inner.names.contains_key(file) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = inner.contents.len();
        inner.contents.push(Content {
            now: bytes.to_vec(),
            synced: Vec::new(),
        });
        inner.names.insert(file.to_owned(), number);
        Ok(())
    }

    fn sync(&mut self, file: &str) -> io::Result<()> {
        let mut inner = self.step()?;
        let file = *inner.names.get(file).ok_or_else(missing)?;
        let content = &mut inner.contents[file];
        content.synced = content.now.clone();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.step()?;
        let file = inner.names.remove(from).ok_or_else(missing)?;
        inner.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, file: &str) -> io::Result<()> {
        let mut inner = self.step()?;
        inner.names.remove(file).map(|_| ()).ok_or_else(missing)
    }

    fn sync_names(&mut self, directory: &str) -> io::Result<()> {
        let inner = &mut *self.step()?;
        inner.synced_names.retain(|path, _| !is_in(directory, path));
        let names = inner
            .names
            .iter()
            .filter(|(path, _)| is_in(directory, path));
        inner
            .synced_names
            .extend(names.map(|(path, file)| (path.clone(), *file)));
        Ok(())
    }
}
