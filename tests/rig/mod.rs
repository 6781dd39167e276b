//! What the tests with real processes and a real Puppet stand on.
//!
//! - [`Scratch`]: a directory per test that holds everything: the binary under test, its state and logs, Puppet's
//!   directories, the module path. Nothing else on the machine is touched. When it goes away, so does every process
//!   that was started from it, and a process that should not have been there any more fails the test.
//! - [`CachedAgent`]: a real agent without a server, fed from a cached catalog.
//! - [`Server`]: a real puppetserver on a loopback port, one per test program.
//! - [`Record`]: what a puppet process looked like from within, written by the puppet process itself.
//! - [`Process`]: a process by pid and start time, as the kernel shows it from outside.
//!
//! Every test program includes the rig as a module and uses a part of it.
#![allow(dead_code, unused_imports)]

pub mod agent;
mod process;
mod record;
mod same;
mod scratch;
mod server;

pub use agent::CachedAgent;
pub use process::{Process, boottime};
pub use record::{Kind, Record};
pub use same::{assert_same_circumstances, assert_same_run, changes_once, hold_until, until_held};
pub use scratch::{Finished, PuppetCommand, Scratch, Started, copy_tree};
pub use server::{Enrolled, Server};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For what takes a puppet run or two on a busy machine.
pub const LONG: Duration = Duration::from_secs(240);
/// For what needs no puppet run.
pub const SHORT: Duration = Duration::from_secs(60);

/// Asks until there is an answer; fails with `what` was waited for when there is none in time.
pub fn wait_for<T>(what: &str, timeout: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + timeout;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            Instant::now() < end,
            "waited {timeout:?} in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// [`wait_for`] a condition.
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, timeout, || condition().then_some(()));
}

/// Copies a program to where it will be started from.
///
/// Another process does it: what a test beside this one forks would hold our descriptor for writing until its exec, and
/// the kernel does not execute what somebody may write to (execve(2), ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let cp = std::process::Command::new("cp")
        .args([from.as_ref(), to.as_ref()])
        .status()
        .expect("cp");
    assert!(
        cp.success(),
        "{} could not be copied",
        from.as_ref().display()
    );
}

/// Writes a program, with the same care as [`copy_program`].
pub fn write_program(path: impl AsRef<Path>, text: &str) {
    let draft = path.as_ref().with_extension("draft");
    std::fs::write(&draft, text).expect("written");
    std::fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("executable");
    copy_program(&draft, path);
    std::fs::remove_file(draft).expect("removed");
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Whether Puppet is laid out here as in its all-in-one packages.
pub fn is_all_in_one() -> bool {
    Path::new("/opt/puppetlabs/bin/puppet").exists()
}

/// Where programs are looked for.
pub fn search_path() -> &'static str {
    if is_all_in_one() {
        "/opt/puppetlabs/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    } else {
        "/usr/sbin:/usr/bin:/sbin:/bin"
    }
}

/// Where an agent without options finds its puppet.conf.
pub fn default_confdir() -> &'static str {
    if is_all_in_one() {
        "/etc/puppetlabs/puppet"
    } else {
        "/etc/puppet"
    }
}

/// A file of the rig.
pub fn rig_file(name: &str) -> PathBuf {
    repository().join("tests/rig").join(name)
}

/// The binary under test: `AGAIN_BIN`, or what `make build` left.
pub fn binary_under_test() -> PathBuf {
    let path = std::env::var_os("AGAIN_BIN")
        .map_or_else(|| repository().join("dist/again"), PathBuf::from);
    assert!(
        path.is_file(),
        "no binary to test at {}: run `make build`, or set AGAIN_BIN",
        path.display()
    );
    path.canonicalize().expect("binary under test")
}

/// Marks a directory as this test program's.
fn claim(dir: &Path) {
    let me = Process::now(std::process::id() as i32).expect("this process");
    std::fs::write(dir.join("owner"), format!("{} {}", me.pid, me.start))
        .expect("the owner's mark");
}

/// Ends and removes, once per test program, what test programs left that were killed before they could clean up themselves.
fn sweep() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for entry in std::fs::read_dir(std::env::temp_dir())
            .into_iter()
            .flatten()
            .flatten()
        {
            let dir = entry.path();
            let is_ours = entry
                .file_name()
                .to_string_lossy()
                .starts_with("again-rig-");
            let Some(mark) = std::fs::read_to_string(dir.join("owner"))
                .ok()
                .filter(|_| is_ours)
            else {
                continue;
            };
            let mut numbers = mark.split(' ').map(str::parse::<u64>);
            if let (Some(Ok(pid)), Some(Ok(start))) = (numbers.next(), numbers.next())
                && !(Process {
                    pid: pid as i32,
                    start,
                })
                .alive()
            {
                process::of_directory(&dir)
                    .into_iter()
                    .for_each(Process::end);
                let _ = std::fs::remove_dir_all(dir);
            }
        }
    });
}

/// A path as text: the paths of the rig are all plain.
pub fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().expect("a plain path").to_owned()
}
