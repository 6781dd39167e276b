//! State directories on file systems that are full or read-only.

use std::fs;
use std::process::Command;
use std::time::Duration;

use again_test_support::{SHORT, Scratch, in_namespaces, start, stays, wait_until};

use crate::faults::{REQUEST, assert_refused, request};

fn mount(options: &str, at: &str) {
    fs::create_dir_all(at).expect("created");
    let done = Command::new("mount")
        .args([
            "-t",
            "tmpfs",
            "-o",
            &format!("{options},mode=755"),
            "again-test",
            at,
        ])
        .status()
        .expect("mount");
    assert!(done.success(), "mount {options}");
}

fn remount(how: &str, at: &str) {
    let done = Command::new("mount")
        .args(["-o", &format!("remount,{how}"), at])
        .status()
        .expect("mount");
    assert!(done.success(), "remounting {at} {how}");
}

fn unmount(at: &str) {
    assert!(
        Command::new("umount")
            .args(["-l", at])
            .status()
            .expect("umount")
            .success()
    );
}

#[test]
fn request_fails_on_a_read_only_file_system() {
    in_namespaces(
        &["--mount"],
        "privileged::disks::request_fails_on_a_read_only_file_system",
        || {
            let scratch = Scratch::new();
            // Before any file exists, and with the files of an earlier request.
            mount("ro", &scratch.at("state"));
            assert_refused(
                &scratch,
                "read-only and empty",
                &request(&scratch),
                &scratch.at("state"),
            );
            unmount(&scratch.at("state"));
            mount("rw", &scratch.at("state"));
            scratch.again_well(&REQUEST);
            remount("ro", &scratch.at("state"));
            let done = request(&scratch);
            assert_eq!(done.code, Some(1), "{done:?}");
            assert!(
                done.err.starts_with("again: error: ") && done.err.lines().count() == 1,
                "{done:?}"
            );
            println!("read-only with a timer: {}", done.err.trim());
            assert_eq!(
                scratch.waiters().len(),
                1,
                "the timer that was pending still is"
            );
            assert_eq!(scratch.timers().len(), 1);
            remount("rw", &scratch.at("state"));
            scratch.again_well(&["stop"]);
            scratch.assert_nothing_left();
            unmount(&scratch.at("state"));
        },
    );
}

/// A file system with room for 1, 2, 3 … pages, or for as many files: the request is granted or
/// refused, never half.
#[test]
fn request_on_a_full_file_system_succeeds_or_fails_whole() {
    in_namespaces(
        &["--mount"],
        "privileged::disks::request_on_a_full_file_system_succeeds_or_fails_whole",
        || {
            let scratch = Scratch::new();
            let (mut granted, mut refused) = (0, 0);
            let rooms = (1..=8).map(|pages| format!("size={}k", pages * 4));
            let rooms = rooms.chain((1..=20).map(|files| format!("nr_inodes={files}")));
            for (n, room) in rooms.enumerate() {
                let state = scratch.at(&format!("full{n}"));
                mount(&room, &state);
                let done = scratch
                    .again(&[&REQUEST[..1], &["--state-dir", &state], &REQUEST[1..]].concat());
                let status = scratch.again(&["status", "--json", "--state-dir", &state]);
                if done.code == Some(0) {
                    granted += 1;
                    assert_eq!(status.code, Some(0), "{room}: {status:?}");
                    assert_eq!(scratch.waiters().len(), 1, "{room}");
                    let stop = scratch.again(&["stop", "--state-dir", &state]);
                    if stop.code != Some(0) {
                        println!(
                            "{room}: granted, but cannot be stopped: {}",
                            stop.err.trim()
                        );
                        for waiter in scratch.waiters() {
                            waiter.end();
                            waiter.wait_until_gone(SHORT);
                        }
                    }
                } else {
                    refused += 1;
                    assert_refused(&scratch, &room, &done, &state);
                    assert_eq!(status.code, Some(3), "{room}: {status:?}");
                    let orders = scratch.orders(&format!("full{n}"));
                    assert!(orders.is_empty(), "{room}: {orders:?}");
                }
                assert!(scratch.waiters().is_empty(), "{room}");
                unmount(&state);
            }
            println!("{refused} refused, {granted} granted");
            assert!(refused > 5 && granted > 5);
        },
    );
}

/// Fills a file system to the last byte.
fn fill(at: &str) {
    let done = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={at}/filler"), "bs=4k"])
        .output()
        .expect("dd");
    assert!(!done.status.success(), "it is full");
}

/// The disk is full, perhaps because of the repeated command: it can be stopped.
#[test]
fn stop_ends_a_waiter_on_a_full_disk() {
    in_namespaces(
        &["--mount"],
        "privileged::disks::stop_ends_a_waiter_on_a_full_disk",
        || {
            let scratch = Scratch::new();
            mount("size=256k", &scratch.at("state"));
            scratch.again_well(&REQUEST);
            fill(&scratch.at("state"));
            assert_eq!(scratch.timers().len(), 1, "shown");
            let done = scratch.again(&["stop"]);
            println!("stop on a full disk: {done:?}");
            assert!(
                scratch.waiters().is_empty(),
                "its waiter lives on: {done:?}"
            );
            assert!(matches!(done.code, Some(0 | 1)), "{done:?}");
            fs::remove_file(scratch.path("state/filler")).expect("removed");
            scratch.again_well(&["stop"]);
            scratch.assert_nothing_left();
            unmount(&scratch.at("state"));
        },
    );
}

/// A timer becomes due on a full disk: a start that cannot be recorded does not happen, since the
/// cap could not be kept. The waiter retries until there is space.
#[test]
fn waiter_starts_its_rerun_once_the_disk_has_space() {
    in_namespaces(
        &["--mount"],
        "privileged::disks::waiter_starts_its_rerun_once_the_disk_has_space",
        || {
            let scratch = Scratch::new();
            mount("size=256k", &scratch.at("state"));
            let run =
                start(&mut scratch.apply("site", "ask('run') if NTH == 1\nhold('go') if NTH == 1"));
            scratch.wait_for_state("again", "waiting for the run");
            let waiter = scratch.waiter("again");
            fill(&scratch.at("state"));
            scratch.release("go");
            run.finish();
            wait_until("an attempt", SHORT, || {
                waiter.title().contains("will retry")
            });
            stays("no rerun", Duration::from_secs(2), || {
                scratch.runs("site").len() == 1
            });
            let timer = scratch
                .timer("again")
                .expect("still on record, for all to see");
            assert_ne!(timer["state"], "dead");
            let why = timer["blocked_by"]["reason"].as_str().expect("words");
            assert!(why.contains("No space left on device"), "{why}");
            fs::remove_file(scratch.path("state/filler")).expect("removed");
            scratch.wait_for_runs("site", 2);
            scratch.wait_until_settled();
            scratch.assert_nothing_left();
            unmount(&scratch.at("state"));
        },
    );
}
