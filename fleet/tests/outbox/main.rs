//! Outbox: each confirmed value is there after a crash at any step, and no value is ever half
//! written.

#[path = "../support/disk.rs"]
mod disk;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use again_fleet::outbox::{Bounds, Directory, Disk, Held, NotKept, Outbox};
use again_test_support::Dice;
use disk::CrashDisk;

const WIDE: Bounds = Bounds {
    count: 1000,
    bytes: 1 << 20,
};

/// Values that each key may have after a crash, or none.
type Allowed = BTreeMap<&'static str, Vec<Option<Vec<u8>>>>;

/// Puts and removes values until the disk stops; returns what each key may then contain.
fn work(outbox: &mut Outbox<CrashDisk>) -> Allowed {
    let mut allowed = Allowed::new();
    for (key, value) in [
        ("a", Some("first")),
        ("b", Some("of b")),
        ("a", Some("second, which is longer")),
        ("b", None),
        ("c", Some("")),
        ("a", Some("3")),
        ("b", Some("b again")),
    ] {
        let before = allowed.entry(key).or_insert_with(|| vec![None]);
        let value = value.map(|text| text.as_bytes().to_vec());
        // Until the operation is confirmed, it may have happened or not.
        before.push(value.clone());
        match &value {
            Some(bytes) if outbox.put(key, bytes).is_ok() => *before = vec![value],
            None if outbox.remove(key).is_ok() => {}
            _ => break,
        }
    }
    allowed
}

fn files(disk: &mut CrashDisk, directory: &str) -> usize {
    disk.list(directory).expect("a directory").len()
}

#[test]
fn a_crash_at_any_step_loses_nothing_that_was_promised() {
    let whole = CrashDisk::default();
    let (mut outbox, _) = Outbox::open(whole.clone(), WIDE).expect("opened");
    work(&mut outbox);
    let steps = whole.steps();
    assert!(steps > 15, "{steps} steps");
    for step in 0..=steps {
        for seed in 0..40 {
            let disk = CrashDisk::default();
            disk.stop_before(step);
            let allowed = match Outbox::open(disk.clone(), WIDE) {
                Ok((mut outbox, _)) => work(&mut outbox),
                Err(_) => Allowed::new(),
            };
            disk.crash(&mut Dice::new(seed));
            let (outbox, held) = Outbox::open(disk, WIDE).expect("opened again");
            assert_eq!(held.aside, Vec::<String>::new(), "step {step} seed {seed}");
            assert_eq!(files(&mut outbox.into_disk(), "tmp"), 0);
            for (key, allowed) in &allowed {
                let is = held.values.get(*key).cloned();
                assert!(
                    allowed.contains(&is),
                    "step {step} seed {seed}: {key} is {is:?}, not one of {allowed:?}"
                );
            }
            assert!(held.values.keys().all(|key| allowed.contains_key(&**key)));
        }
    }
}

fn open(path: &Path, bounds: Bounds) -> (Outbox<Directory>, Held) {
    Outbox::open(Directory(path.to_owned()), bounds).expect("opened")
}

fn only_file(path: &Path) -> std::path::PathBuf {
    let mut entries = fs::read_dir(path.join("kept")).expect("kept");
    entries.next().expect("a file").expect("an entry").path()
}

#[test]
fn on_a_real_disk_values_come_back() {
    let home = tempfile::tempdir().expect("a directory");
    let (mut outbox, held) = open(home.path(), WIDE);
    assert_eq!(held, Held::default());
    let long = format!("to/{}/../\u{e9} name", "x".repeat(253));
    outbox.put(&long, b"one").expect("kept");
    outbox.put("b", b"gone").expect("kept");
    outbox.put(&long, b"two").expect("kept");
    outbox.remove("b").expect("removed");
    outbox.remove("never there").expect("nothing to do");
    let (_, held) = open(home.path(), WIDE);
    assert_eq!(held.values, BTreeMap::from([(long, b"two".to_vec())]));
    assert_eq!(held.aside, Vec::<String>::new());
}

#[test]
fn what_lies_in_tmp_is_emptied() {
    let home = tempfile::tempdir().expect("a directory");
    open(home.path(), WIDE);
    fs::write(home.path().join("tmp/half"), "AGO1").expect("written");
    let (_, held) = open(home.path(), WIDE);
    assert_eq!(held, Held::default());
    assert_eq!(
        fs::read_dir(home.path().join("tmp")).expect("tmp").count(),
        0
    );
}

#[test]
fn torn_and_foreign_files_are_set_aside_and_said() {
    for (what, damage) in [
        (
            "it is torn",
            (|bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1)) as fn(&mut Vec<u8>),
        ),
        ("it is torn", |bytes| bytes[12] ^= 1),
        ("it is torn", |bytes| bytes.truncate(5)),
        ("that is not a file of the outbox", |bytes| bytes.clear()),
        ("that is not a file of the outbox", |bytes| {
            *bytes = b"something else".to_vec()
        }),
        (
            "version 2 of a file of the outbox: this program knows version 1",
            |bytes| bytes[3] = b'2',
        ),
        ("it is longer than", |bytes| bytes.resize(2 << 20, 0)),
    ] {
        let home = tempfile::tempdir().expect("a directory");
        let (mut outbox, _) = open(home.path(), WIDE);
        outbox.put("a", b"good").expect("kept");
        let file = only_file(home.path());
        outbox.put("b", b"good too").expect("kept");
        let mut bytes = fs::read(&file).expect("a file");
        damage(&mut bytes);
        fs::write(&file, bytes).expect("damaged");
        let (mut outbox, held) = open(home.path(), WIDE);
        assert_eq!(
            held.values,
            BTreeMap::from([("b".to_owned(), b"good too".to_vec())])
        );
        let [said] = &held.aside[..] else {
            panic!("{:?}", held.aside);
        };
        assert!(
            said.contains(what) && said.ends_with("; set aside"),
            "{said}"
        );
        assert!(
            home.path()
                .join("aside")
                .join(file.file_name().expect("a name"))
                .exists()
        );
        outbox.put("a", b"anew").expect("kept");
    }
}

#[test]
fn a_file_under_another_name_does_not_count_and_neither_does_a_directory() {
    let home = tempfile::tempdir().expect("a directory");
    let (mut outbox, _) = open(home.path(), WIDE);
    outbox.put("a", b"good").expect("kept");
    let file = only_file(home.path());
    fs::rename(&file, home.path().join("kept/other")).expect("renamed");
    fs::create_dir(home.path().join("kept/directory")).expect("made");
    let (_, held) = open(home.path(), WIDE);
    assert!(held.values.is_empty());
    assert_eq!(held.aside.len(), 2, "{:?}", held.aside);
}

#[test]
fn it_is_bounded() {
    let home = tempfile::tempdir().expect("a directory");
    let narrow = Bounds {
        count: 2,
        bytes: 300,
    };
    let (mut outbox, _) = open(home.path(), narrow);
    outbox.put("a", b"1").expect("kept");
    outbox.put("b", b"2").expect("kept");
    assert!(matches!(outbox.put("c", b"3"), Err(NotKept::Full(_))));
    outbox
        .put("a", &[b'x'; 100])
        .expect("in place of the older");
    assert!(matches!(
        outbox.put("a", &[b'x'; 300]),
        Err(NotKept::Full(_))
    ));
    assert!(matches!(
        outbox.put("a", &vec![0; 2 << 20]),
        Err(NotKept::TooLarge(_))
    ));
    outbox.remove("b").expect("removed");
    outbox.put("c", b"3").expect("there is room");
    let (mut outbox, held) = open(home.path(), narrow);
    assert_eq!(held.values.len(), 2);
    assert_eq!(held.values["a"], [b'x'; 100]);
    assert!(matches!(outbox.put("d", b"4"), Err(NotKept::Full(_))));
}

#[test]
fn a_disk_that_fails_is_said() {
    for step in 0..4 {
        let disk = CrashDisk::default();
        let (mut outbox, _) = Outbox::open(disk.clone(), WIDE).expect("opened");
        outbox.put("a", b"old").expect("kept");
        disk.stop_before(disk.steps() + step);
        let error = outbox.put("a", b"new").expect_err("not kept").to_string();
        assert_eq!(error, "cannot write to the outbox: the machine has stopped");
    }
}
