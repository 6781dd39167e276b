//! Peer that a site would write in a shell instead: a loop over `etcdctl watch` that puts each
//! change into the queue of task-spooler.

use std::ffi::CString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use again_test_support::wait_until;
use anyhow::{Context, Result, ensure};

use crate::numbers::{Table, many, verdict};
use crate::scene::{PATIENCE, STAMP, Scene, texts};
use crate::start::as_exec_does;

/// Key that the loop watches.
const WATCHED: &str = "again/v1/test/peer";
/// Script of the loop, which queues a stamp for each change.
const LOOP: &str = r#"watched=$1; shift
"$@" watch "$watched" </dev/null | while read -r word; do [ "$word" != PUT ] || tsp -n "$BENCH" "$WORD" "$STAMP"; done"#;

/// Running loop, and its queue.
pub struct Loop<'s> {
    scene: &'s Scene,
    /// Shell of the loop, the leader of a process group with its client.
    shell: Child,
    socket: PathBuf,
    pub stamp: PathBuf,
}

impl<'s> Loop<'s> {
    pub fn new(scene: &'s Scene) -> Result<Loop<'s>> {
        let (socket, stamp) = (PathBuf::from(scene.at("tsp")), scene.at("peer-stamp"));
        let mut shell = Command::new("bash");
        shell
            .args(["-c", LOOP, "loop", WATCHED])
            .args(texts(&scene.etcdctl(&[])))
            .env("TS_SOCKET", &socket)
            .env("TMPDIR", scene.at(""))
            // Maximum number of finished jobs in its list.
            .env("TS_MAXFINISHED", "10")
            .env("BENCH", std::env::current_exe()?)
            .env("WORD", STAMP)
            .env("STAMP", &stamp)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        let peer = Loop {
            scene,
            shell: shell.spawn().context("bash")?,
            socket,
            stamp: stamp.into(),
        };
        // The watch begins at an unknown moment.
        wait_until("the loop over etcdctl watch", PATIENCE, || {
            let _ = as_exec_does(&peer.fire());
            sleep(Duration::from_millis(200));
            peer.stamp.exists()
        });
        sleep(Duration::from_secs(1));
        let _ = fs::remove_file(&peer.stamp);
        Ok(peer)
    }

    /// Returns the command that changes the watched key.
    pub fn fire(&self) -> Vec<CString> {
        self.scene.etcdctl(&["put", WATCHED, "changed"])
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        let queue = Command::new("tsp")
            .arg("-K")
            .env("TS_SOCKET", &self.socket)
            .status();
        if let Err(e) = queue {
            eprintln!("bench: the queue may go on: tsp: {e}");
        }
        // SAFETY: a group whose first process is our child, which has not been waited for.
        unsafe { libc::kill(-(self.shell.id() as i32), libc::SIGTERM) };
        let _ = self.shell.wait();
    }
}

/// Returns the number of runs, from the lines that they leave beside the stamp.
fn runs(stamp: &Path) -> usize {
    let all = fs::read_to_string(stamp.with_extension("all"));
    all.map_or(0, |text| text.lines().count())
}

/// Returns the number of runs that follow from this number of triggers during a run.
fn follow(stamp: &Path, fire: &[CString], times: usize) -> Result<usize> {
    let (hold, before) = (stamp.with_extension("hold"), runs(stamp));
    fs::write(&hold, "")?;
    for n in 0..=times {
        let cost = as_exec_does(fire)?;
        ensure!(cost.status == 0, "{}", cost.output);
        if n == 0 {
            wait_until("a run", PATIENCE, || runs(stamp) > before);
        }
    }
    // All triggers have arrived.
    sleep(Duration::from_secs(1));
    fs::remove_file(hold)?;
    let mut known = 0;
    wait_until("the end of all runs", 3 * PATIENCE, || {
        let now = runs(stamp) - before - 1;
        sleep(Duration::from_secs(2));
        now > 0 && std::mem::replace(&mut known, now) == now
    });
    Ok(known)
}

/// Measures a thousand triggers for one node during a run.
pub fn thousand(scene: &Scene, peer: &Loop, table: &mut Table) -> Result<()> {
    let times = many(1000, 10);
    let ours = follow(
        Path::new(&scene.at("stamp")),
        &scene.trigger("lb1.test"),
        times,
    )?;
    let theirs = follow(&peer.stamp, &peer.fire(), times)?;
    table.add(
        &format!("{times} triggers for a node during its run: runs after it"),
        &ours.to_string(),
        "",
        &format!("`etcdctl watch` and task-spooler {theirs}"),
        &verdict("1", ours == 1),
    );
    Ok(())
}
