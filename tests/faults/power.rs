//! The power fails: a file system on a loop device goes down with all that it had not written (`FS_IOC_SHUTDOWN`, as the file
//! systems' own tests do it), every process is killed, and the journal is replayed by the next mount.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::rig::{SHORT, wait_until};
use crate::stage::{Stage, in_namespaces};

/// Power cuts for each file system.
const CUTS: u64 = 16;

/// `_IOR('X', 125, __u32)` of linux/fs.h, and XFS_FSOP_GOING_FLAGS_NOLOGFLUSH: without even the journal.
const GO_DOWN: &str = "import fcntl, os, struct, sys
disk = os.open(sys.argv[1], os.O_RDONLY)
print('ready', flush=True)
sys.stdin.readline()
fcntl.ioctl(disk, 0x8004587d, struct.pack('I', 2))";

/// What will cut the power, as soon as it is told to.
struct Switch(Child);

impl Switch {
    fn ready(at: &str) -> Switch {
        let mut child = Command::new("python3")
            .args(["-c", GO_DOWN, at])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let out = child.stdout.as_mut().expect("a pipe");
        out.read_exact(&mut [0; 6]).expect("ready");
        Switch(child)
    }

    fn off(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("waited for").success());
    }
}

fn well(program: &str, words: &[&str]) {
    let done = Command::new(program).args(words).output().expect(program);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {words:?}: {said}");
}

fn kill_all(stage: &Stage) {
    for process in stage.processes() {
        let _ = process.signal(nix::sys::signal::Signal::SIGKILL);
    }
    wait_until("all to be dead", SHORT, || stage.processes().is_empty());
}

/// Nothing is pending but what is due in an hour.
fn is_all_later(stage: &Stage) -> bool {
    let is_later = |timer: &serde_json::Value| {
        let name = timer["name"].as_str();
        name.is_some_and(|name| name.starts_with("later"))
    };
    stage.timers().iter().all(is_later)
}

/// Whatever the moment: a promise that its waiter has slept on is kept, no record is lost, and nothing runs a third time.
fn survives(kind: &str, options: &[&str], megabytes: u64) {
    let stage = Stage::new();
    let (image, state) = (stage.at("image"), stage.at("state"));
    let file = fs::File::create(&image).expect("created");
    file.set_len(megabytes << 20).expect("sparse");
    well(&format!("mkfs.{kind}"), &[options, &[&image]].concat());
    fs::create_dir(&state).expect("created");
    let mount = || well("mount", &["-o", "loop", &image, &state]);
    mount();
    let (helper, stamps) = (stage.at("bin/helper"), stage.at("stamps"));
    let ask = |name: &str, delta: &str| {
        let words = [
            "run", "--name", name, "--delta", delta, "--", &helper, "stamp", &stamps, name,
        ];
        stage.again_well(&words);
    };
    let mut made_again = 0;
    let mut set_aside = 0;
    let mut expected: Vec<String> = Vec::new();
    for cut in 0..CUTS {
        let (now, later) = (format!("now{cut}"), format!("later{cut}"));
        ask(&later, "1h");
        let waiter = stage.waiter(&later);
        wait_until("it to sleep", SHORT, || {
            waiter.title().contains("waits until")
        });
        // From before its start to after its end.
        let switch = Switch::ready(&state);
        ask(&now, "0");
        std::thread::sleep(Duration::from_micros(cut * cut * 100));
        switch.off();
        kill_all(&stage);
        well("umount", &[&state]);
        mount();
        let resumed = stage.again(&["resume"]);
        set_aside += usize::from(resumed.err.contains("unreadable"));
        let pending = stage.timers();
        assert!(
            pending.iter().any(|timer| timer["name"] == later.as_str()),
            "{kind}, cut {cut}: the promise of an hour is lost: {resumed:?} {pending:?}"
        );
        wait_until("what is due to run", SHORT, || is_all_later(&stage));
        // And at once again: what was made once more is on the disk, and does not go on for ever.
        Switch::ready(&state).off();
        kill_all(&stage);
        well("umount", &[&state]);
        mount();
        stage.again(&["resume"]);
        wait_until("what is due to run", SHORT, || is_all_later(&stage));
        assert_eq!(
            stage.again(&["resume"]).code,
            Some(0),
            "{kind}, cut {cut}: and now all is well"
        );
        expected.push(now);
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for stamp in stage.stamps() {
        *counts.entry(stamp.words.join(" ")).or_default() += 1;
    }
    for (name, count) in &counts {
        assert!(*count <= 2, "{kind}: {name} ran {count} times");
        made_again += usize::from(*count == 2);
    }
    let never = expected
        .iter()
        .filter(|name| !counts.contains_key(*name))
        .count();
    stage.stop_all();
    well("umount", &[&state]);
    println!(
        "{kind}: {CUTS} power cuts: {} reruns, {made_again} of them made again, {never} not yet promised, {set_aside} records set aside",
        counts.len()
    );
}

#[test]
fn the_power_fails_on_ext4() {
    in_namespaces(&["--mount"], "power::the_power_fails_on_ext4", || {
        survives("ext4", &["-q", "-F"], 32);
    });
}

#[test]
fn the_power_fails_on_xfs() {
    in_namespaces(&["--mount"], "power::the_power_fails_on_xfs", || {
        survives("xfs", &["-q", "-f"], 320);
    });
}
