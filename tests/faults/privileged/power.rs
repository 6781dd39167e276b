//! Power failures: a file system on a loop device goes down with everything that it had not written
//! (`FS_IOC_SHUTDOWN`, as in the file systems' own tests), every process is killed, and the next
//! mount replays the journal.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use again_base::sys::file::{is_synced_with_its_name, sync, write_out};
use again_test_support::{Ended, SHORT, Scratch, in_namespaces, start, wait_until};

/// Power cuts for each file system.
const CUTS: u64 = 16;

/// Script with `_IOR('X', 125, __u32)` of linux/fs.h, and XFS_FSOP_GOING_FLAGS_NOLOGFLUSH: without
/// even the journal.
const GO_DOWN: &str = "import fcntl, os, struct, sys
disk = os.open(sys.argv[1], os.O_RDONLY)
print('ready', flush=True)
sys.stdin.readline()
fcntl.ioctl(disk, 0x8004587d, struct.pack('I', 2))";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Process that cuts the power when its standard input says so.
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

fn kill_all(scratch: &Scratch) {
    for process in scratch.processes() {
        let _ = process.signal(nix::sys::signal::Signal::SIGKILL);
    }
    wait_until("all to be dead", SHORT, || scratch.processes().is_empty());
}

/// Whether nothing is pending except timers that are due in an hour.
fn is_all_later(scratch: &Scratch) -> bool {
    let is_later = |timer: &serde_json::Value| {
        let name = timer["name"].as_str();
        name.is_some_and(|name| name.starts_with("later"))
    };
    scratch.timers().iter().all(is_later)
}

/// File systems: name, options to make them, and minimum size in megabytes.
const EXT4: Kind = ("ext4", &["-q", "-F"], 32);
const XFS: Kind = ("xfs", &["-q", "-f"], 320);
type Kind = (&'static str, &'static [&'static str], u64);

/// State directory on a disk of its own.
struct Disk<'a>(&'a Scratch);

impl Disk<'_> {
    fn new(scratch: &Scratch, (kind, options, megabytes): Kind) -> Disk<'_> {
        let image = scratch.at("image");
        let file = fs::File::create(&image).expect("created");
        file.set_len(megabytes << 20).expect("sparse");
        well(&format!("mkfs.{kind}"), &[options, &[&image]].concat());
        fs::create_dir(scratch.path("state")).expect("created");
        let disk = Disk(scratch);
        disk.mount();
        disk
    }

    fn mount(&self) {
        let (image, state) = (self.0.at("image"), self.0.at("state"));
        well("mount", &["-o", "loop", &image, &state]);
    }

    fn unmount(&self) {
        well("umount", &[&self.0.at("state")]);
    }

    fn switch(&self) -> Switch {
        Switch::ready(&self.0.at("state"))
    }

    /// Cuts the power, and restores it in another boot. Returns the output of `again resume`.
    fn cut(&self, switch: Switch) -> Ended {
        switch.off();
        kill_all(self.0);
        self.replay();
        let boot = fs::read("/proc/sys/kernel/random/uuid").expect("an ID");
        let file = self.0.at("boot-id");
        fs::write(&file, boot).expect("written");
        // The file of an earlier case may be gone, and then nothing can be mounted on it.
        let _ = Command::new("umount").arg(BOOT_ID).output();
        well("mount", &["--bind", &file, BOOT_ID]);
        self.0.again(&["resume"])
    }

    fn replay(&self) {
        self.unmount();
        self.mount();
    }
}

/// At any moment, a promise whose waiter has slept is kept, no record is lost, and nothing runs
/// twice.
fn survives(kind: Kind) {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, kind);
    let kind = kind.0;
    let (helper, stamps) = (scratch.at("bin/helper"), scratch.at("stamps"));
    let ask = |name: &str, delta: &str| {
        let words = [
            "run", "--name", name, "--delta", delta, "--", &helper, "stamp", &stamps, name,
        ];
        scratch.again_well(&words);
    };
    let mut expected: Vec<String> = Vec::new();
    for cut in 0..CUTS {
        let (now, later) = (format!("now{cut}"), format!("later{cut}"));
        ask(&later, "1h");
        let waiter = scratch.waiter(&later);
        wait_until("it to sleep", SHORT, || {
            waiter.title().contains("waits until")
        });
        // From before its start to after its end.
        let switch = disk.switch();
        ask(&now, "0");
        // Time itself is tested: the power fails at another moment each time.
        std::thread::sleep(Duration::from_micros(cut * cut * 100));
        let resumed = disk.cut(switch);
        assert!(
            !resumed.err.contains("unreadable"),
            "{kind}, cut {cut}: {resumed:?}"
        );
        let pending = scratch.timers();
        assert!(
            pending.iter().any(|timer| timer["name"] == later.as_str()),
            "{kind}, cut {cut}: the promise of an hour is lost: {resumed:?} {pending:?}"
        );
        wait_until("what is due to run", SHORT, || is_all_later(&scratch));
        disk.cut(disk.switch());
        wait_until("what is due to run", SHORT, || is_all_later(&scratch));
        assert_eq!(
            scratch.again(&["resume"]).code,
            Some(0),
            "{kind}, cut {cut}: and now all is well"
        );
        expected.push(now);
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let stamps = scratch.stamps();
    for stamp in &stamps {
        *counts.entry(stamp.words.join(" ")).or_default() += 1;
    }
    for (name, count) in &counts {
        let all = || (&stamps, scratch.again(&["history", "--json"]));
        assert_eq!(*count, 1, "{kind}: {name} ran {count} times: {:#?}", all());
    }
    let never = expected
        .iter()
        .filter(|name| !counts.contains_key(*name))
        .count();
    scratch.stop_all();
    disk.unmount();
    println!(
        "{kind}: {CUTS} power cuts: {} reruns, {never} not yet promised or cut off before they began",
        counts.len()
    );
}

#[test]
fn again_keeps_its_promises_when_the_power_fails_on_ext4() {
    in_namespaces(
        &["--mount"],
        "privileged::power::again_keeps_its_promises_when_the_power_fails_on_ext4",
        || {
            survives(EXT4);
        },
    );
}

#[test]
fn again_keeps_its_promises_when_the_power_fails_on_xfs() {
    in_namespaces(
        &["--mount"],
        "privileged::power::again_keeps_its_promises_when_the_power_fails_on_xfs",
        || {
            survives(XFS);
        },
    );
}

/// Replaces a file with one number after another, as a start is recorded, until it fails.
fn count(state: &Path, told: &mut u64) -> io::Result<Infallible> {
    loop {
        let new = state.join("new");
        let mut file = fs::File::create(&new)?;
        write!(file, "{}", *told + 1)?;
        write_out(&file)?;
        fs::rename(&new, state.join("number"))?;
        sync(&file)?;
        *told += 1;
    }
}

/// A confirmed sync holds, also for processes that survive when the file system goes down at that
/// moment.
fn keeps_what_it_told(kind: Kind) {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, kind);
    let state = scratch.path("state");
    let opened = fs::File::open(&state).expect("opened");
    assert!(is_synced_with_its_name(&opened), "{}", kind.0);
    drop(opened);
    let mut told = 0;
    for cut in 0..4 * CUTS {
        let switch = disk.switch();
        std::thread::scope(|scope| {
            scope.spawn(|| count(&state, &mut told));
            // Time itself is tested: as above.
            std::thread::sleep(Duration::from_micros(cut * 300));
            switch.off();
        });
        disk.replay();
        let number = fs::read_to_string(state.join("number")).unwrap_or_default();
        let kept = number.parse().unwrap_or(0);
        assert!(
            kept >= told,
            "{}, cut {cut}: told of {told}, kept {kept}",
            kind.0
        );
        told = kept;
    }
    assert!(told > CUTS, "{}: {told}", kind.0);
    disk.unmount();
}

#[test]
fn sync_keeps_what_it_reported_when_the_disk_fails() {
    let test = "privileged::power::sync_keeps_what_it_reported_when_the_disk_fails";
    in_namespaces(&["--mount"], test, || {
        keeps_what_it_told(EXT4);
        keeps_what_it_told(XFS);
    });
}

/// During a long run, a promise is on the disk as soon as the waiter sleeps, before it has a due
/// time.
#[test]
fn timer_survives_a_power_cut_during_its_run() {
    let test = "privileged::power::timer_survives_a_power_cut_during_its_run";
    in_namespaces(&["--mount"], test, || {
        promises_and_dies(EXT4);
        promises_and_dies(XFS);
    });
}

fn promises_and_dies(kind: Kind) {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, kind);
    // Not the target's first record, which has no other to be exchanged with.
    let manifest = "ask('run', '--delta', '1h')\nhold('go') if NTH == 2";
    start(&mut scratch.apply("site", manifest)).finish();
    scratch.again_well(&["stop"]);
    well("sync", &["-f", &scratch.at("state")]);
    let switch = disk.switch();
    let _run = start(&mut scratch.apply("site", manifest));
    scratch.wait_for_state("again", "waiting for the run");
    scratch.waiter("again").wait_until_asleep();
    let resumed = disk.cut(switch);
    let said = "again: resumed: timer 'again'";
    assert!(resumed.out.contains(said), "{}: {resumed:?}", kind.0);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
    disk.unmount();
}

/// A confirmed `disable` survives: requests are refused as before.
#[test]
fn disable_survives_a_power_cut() {
    let test = "privileged::power::disable_survives_a_power_cut";
    in_namespaces(&["--mount"], test, || {
        for kind in [EXT4, XFS] {
            let scratch = Scratch::new();
            let disk = Disk::new(&scratch, kind);
            scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
            scratch.again_well(&["stop"]);
            let switch = disk.switch();
            scratch.again_well(&["disable", "not", "now"]);
            disk.cut(switch);
            assert_eq!(
                scratch.status()["disabled"]["reason"],
                "not now",
                "{}",
                kind.0
            );
            disk.unmount();
        }
    });
}

/// Makes a request with this delta in a run that lasts until the disk has everything, as a run of
/// half a minute does; the power fails as soon as the rerun has begun.
fn begins_and_dies(kind: Kind, delta: &str) {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, kind);
    let manifest = format!(
        "if NTH == 1\nask('run', '--delta', '{delta}')\nhold('go')\nelse\nhold('never')\nend"
    );
    let run = start(&mut scratch.apply("site", &manifest));
    scratch.wait_for_state("again", "waiting for the run");
    well("sync", &["-f", &scratch.at("state")]);
    let switch = disk.switch();
    scratch.release("go");
    run.finish();
    let begun = |count| scratch.runs("site").len() >= count;
    wait_until("the rerun", SHORT, || begun(2));
    assert_eq!(disk.cut(switch).code, Some(0));
    let case = format!("{}, delta {delta}", kind.0);
    let pending = scratch.timers();
    assert!(pending.is_empty(), "{case}: made again: {pending:?}");
    let cap = &scratch.status()["targets"][0]["cap"];
    assert_eq!(cap["used"], 1, "{case}: {cap}");
    assert_eq!(scratch.runs("site").len(), 2, "{case}");
    scratch.stop_all();
    disk.unmount();
}

/// A rerun that takes the machine down does so only once: its start is on the disk first, with a
/// delta or without.
#[test]
fn rerun_starts_once_when_the_power_fails_as_it_begins() {
    in_namespaces(
        &["--mount"],
        "privileged::power::rerun_starts_once_when_the_power_fails_as_it_begins",
        || {
            for kind in [EXT4, XFS] {
                for delta in ["0", "1"] {
                    begins_and_dies(kind, delta);
                }
            }
        },
    );
}
