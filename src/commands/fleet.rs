//! `again fleet`: the second program, which carries triggers between nodes.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::unistd::execv;

use crate::cli::Fleet;
use crate::layout::complain;
use crate::model::Exit;
use crate::sys::attributes::{SignalState, set_signals};
use crate::sys::spawn::own_program;

/// Where it is, unless it is beside this program: where the class puts it, and where its package does.
const PLACES: [&str; 2] = ["/usr/local/bin", "/usr/bin"];

/// Becomes again-fleet, which gets the words as they are.
///
/// # Errors
/// It is there, and cannot be executed.
pub fn main(args: &Fleet, signals: SignalState) -> Result<Exit> {
    set_signals(signals);
    let own = own_program();
    let beside = own.parent().unwrap_or(Path::new("/"));
    for directory in [beside].into_iter().chain(PLACES.map(Path::new)) {
        let program: PathBuf = directory.join("again-fleet");
        let words = [program.as_os_str()].into_iter();
        let words = words.chain(args.words.iter().map(|word| word.as_os_str()));
        let words: Vec<CString> = words
            .map(|word| CString::new(word.as_bytes()))
            .collect::<Result<_, _>>()?;
        let Err(error) = execv(&words[0], &words);
        if error != Errno::ENOENT {
            bail!("cannot execute {}: {}", program.display(), error.desc());
        }
    }
    complain(
        "again: error: again-fleet is not installed: it is neither beside this program nor in /usr/local/bin or /usr/bin; install its package, or include common::again::fleet",
    );
    Ok(Exit::Unavailable)
}
