//! The directories of our own: made where they are missing, refused where others could
//! tamper with what is in them.

use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::sys::user;

/// What to do about a directory that cannot be used.
const REMEDY: &str = "remove it, or name another one with --state-dir or AGAIN_STATE_DIR";

/// Makes a directory if it is missing, and refuses one that others could tamper with.
///
/// # Errors
/// What is wrong with which directory, and what to do.
pub fn make_directory(path: &Path, mode: u32) -> Result<()> {
    if let Some((above, why)) = replaceable_by_others(path) {
        bail!(
            "{} is not safe: {} {why}, who could put another in its place; {REMEDY}",
            path.display(),
            above.display()
        );
    }
    make_own_directory(path, mode)
}

/// [`make_directory`] for one whose parents were looked at.
pub(super) fn make_own_directory(path: &Path, mode: u32) -> Result<()> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path);
    let meta = match (std::fs::symlink_metadata(path), made) {
        (Ok(meta), _) => meta,
        (Err(_), Err(e)) => {
            return Err(e).with_context(|| format!("cannot make the directory {}", path.display()));
        }
        (Err(e), Ok(())) => {
            return Err(e).with_context(|| format!("cannot look at {}", path.display()));
        }
    };
    if meta.file_type().is_symlink() {
        bail!("{} is a symbolic link; {REMEDY}", path.display());
    }
    if !meta.is_dir() {
        bail!("{} is not a directory; {REMEDY}", path.display());
    }
    if meta.uid() != user::effective() {
        let remedy = if meta.uid() == 0 {
            "run this as root, or name another one with --state-dir or AGAIN_STATE_DIR"
        } else {
            REMEDY
        };
        bail!(
            "{} belongs to {}, not to {}; {remedy}",
            path.display(),
            user::name(meta.uid()),
            user::name(user::effective())
        );
    }
    if meta.mode() & 0o022 != 0 {
        bail!(
            "{} can be written to by others (mode {:o}); {REMEDY}",
            path.display(),
            meta.mode() & 0o7777
        );
    }
    // The umask of the run may have taken away what others are to see.
    let is = meta.mode() & 0o777;
    if is != mode && (is == mode & !0o077 || is & 0o700 != 0o700) {
        std::fs::set_permissions(path, Permissions::from_mode(mode))
            .with_context(|| format!("cannot set the mode of {}", path.display()))?;
    }
    Ok(())
}

/// Whose the files of all users seem to be that a user namespace does not know.
const OVERFLOW: u32 = 65534;

/// The directory or link on the way to `path` that somebody but us and root could
/// replace, and whose it is.
fn replaceable_by_others(path: &Path) -> Option<(PathBuf, String)> {
    let is_trusted = |uid: u32| {
        uid == 0 || uid == user::effective() || (uid == OVERFLOW && user::is_in_namespace())
    };
    let foreign = |at: &Path, meta: &std::fs::Metadata| {
        // The name is looked up for the message only: it means reading /etc/passwd.
        let why = || format!("belongs to {}", user::name(meta.uid()));
        (!is_trusted(meta.uid())).then(|| (at.to_owned(), why()))
    };
    let links = path.ancestors().skip(1).filter_map(|at| {
        let meta = std::fs::symlink_metadata(at).ok()?;
        meta.is_symlink().then(|| foreign(at, &meta)).flatten()
    });
    // The nearest one that is there already.
    let parent = path
        .ancestors()
        .skip(1)
        .find_map(|at| at.canonicalize().ok())?;
    let directories = parent.ancestors().filter_map(|at| {
        let meta = std::fs::metadata(at).ok()?;
        // In a sticky directory nobody can rename what is ours.
        let is_open = meta.mode() & 0o002 != 0 && meta.mode() & 0o1000 == 0;
        let open = || (at.to_owned(), "can be written to by everybody".to_owned());
        foreign(at, &meta).or_else(|| is_open.then(open))
    });
    links.chain(directories).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_directory_that_others_can_write_to_or_a_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = dir.path().join("open");
        std::fs::create_dir(&open).expect("made");
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("opened");
        let error = make_directory(&open, 0o755).expect_err("refused");
        assert!(format!("{error:#}").contains("written to by others"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).expect("linked");
        let error = make_directory(&link, 0o755).expect_err("refused");
        assert!(format!("{error:#}").contains("symbolic link"));
    }
}
