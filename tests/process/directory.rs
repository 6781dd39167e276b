use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use again_test_support::{SHORT, Scratch, wait_until};

/// Starts a run in `work` below the directory, with this `PWD`; returns where its rerun would start
/// according to `again explain`.
#[track_caller]
fn would_start_in(scratch: &Scratch, directory: &str, pwd: Option<&str>) -> String {
    let _ = fs::remove_dir_all(scratch.path("past/site"));
    let _ = fs::remove_file(scratch.path("go"));
    let site = scratch.write("work/site.pp", "hold('go')");
    let mut run = scratch.puppet_command(&["apply".into(), site.into()]);
    run.current_dir(directory);
    match pwd {
        Some(pwd) => run.env("PWD", pwd),
        None => run.env_remove("PWD"),
    };
    let run = scratch.start(run);
    wait_until("the run", SHORT, || !scratch.runs("site").is_empty());
    let said = scratch.again_well(&["explain", "--pid", &run.pid().to_string()]);
    scratch.release("go");
    run.finish();
    let line = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("in the directory: "));
    line.unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[test]
fn run_below_a_link_runs_again_where_the_link_leads_by_then() {
    let scratch = Scratch::new();
    for release in ["1", "2"] {
        let code = format!("ask('run', '--delta', '3') if NTH == 1; note('release', '{release}')");
        scratch.write(&format!("work/releases/{release}/site.pp"), &code);
    }
    let current = scratch.path("work/current");
    symlink("releases/1", &current).expect("linked");
    let mut run = scratch.puppet_command(&["apply".into(), "site.pp".into()]);
    // As a shell leaves it after `cd current`.
    run.current_dir(&current).env("PWD", &current);
    run.status().expect("ran");
    fs::remove_file(&current).expect("removed");
    symlink("releases/2", &current).expect("linked");
    fs::remove_dir_all(scratch.path("work/releases/1")).expect("removed");
    let runs = scratch.wait_for_runs("site", 2);
    assert_eq!(runs[1].text("release"), "2");
    assert_eq!(runs[1].text("cwd"), scratch.at("work/releases/2"));
    scratch.wait_until_settled();
    scratch.assert_nothing_left();
}

#[test]
fn pwd_names_the_directory_only_where_it_leads_there_and_nobody_else_can_move_it() {
    let scratch = Scratch::new();
    let real = scratch.at("work/releases/1");
    fs::create_dir_all(&real).expect("made");
    fs::create_dir_all(scratch.path("work/releases/2")).expect("made");
    let link = |name: &str, to: &str| {
        let _ = fs::remove_file(scratch.path(name));
        symlink(to, scratch.path(name)).expect("linked");
        scratch.at(name)
    };
    let other = |name: &str, mode: u32| {
        fs::create_dir_all(scratch.path(name)).expect("made");
        fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(mode)).expect("set");
    };
    let current = link("work/current", "releases/1");
    let second = link("work/second", "current");
    let absolute = link("work/absolute", &real);
    for pwd in [
        &current,
        &second,
        &absolute,
        &format!("{current}/../1"),
        &real,
    ] {
        assert_eq!(&would_start_in(&scratch, &real, Some(pwd)), pwd);
    }
    let stale = link("work/stale", "releases/2");
    other("work/open", 0o777);
    let open = link("work/open/current", &real);
    other("work/sticky", 0o1777);
    let sticky = link("work/sticky/current", &real);
    let through = link("work/through", &open);
    other("work/group", 0o775);
    chown(scratch.path("work/group"), None, Some(65534)).expect("given");
    let group = link("work/group/current", &real);
    other("work/theirs", 0o755);
    chown(scratch.path("work/theirs"), Some(65534), None).expect("given");
    let theirs = link("work/theirs/current", &real);
    // In a sticky directory no other user can replace root's link, but can replace their own.
    assert_eq!(would_start_in(&scratch, &real, Some(&sticky)), sticky);
    std::os::unix::fs::lchown(&sticky, Some(65534), None).expect("given");
    for pwd in [
        None,
        Some(""),
        Some("."),
        Some("work/current"),
        Some("/"),
        Some("/missing"),
        Some(stale.as_str()),
        Some(&open),
        Some(&sticky),
        Some(&through),
        Some(&group),
        Some(&theirs),
        Some("/proc/1/cwd"),
        Some("/proc/self/cwd"),
    ] {
        assert_eq!(would_start_in(&scratch, &real, pwd), real, "{pwd:?}");
    }
    // The kernel's name for a directory with the same inode number on another file system.
    assert_eq!(would_start_in(&scratch, "/proc", Some("/sys")), "/proc");
}

#[test]
fn runs_below_a_link_are_one_target_and_those_of_its_releases_are_others() {
    let scratch = Scratch::new();
    for release in ["1", "2"] {
        scratch.write(
            &format!("work/releases/{release}/site.pp"),
            "ask('run', '--delta', '500')",
        );
    }
    let current = scratch.path("work/current");
    let ask_in = |directory: &str, pwd: &str| {
        let mut run = scratch.puppet_command(&["apply".into(), "site.pp".into()]);
        run.current_dir(scratch.path(directory))
            .env("PWD", scratch.path(pwd));
        run.status().expect("ran");
        scratch.timers().len()
    };
    symlink("releases/1", &current).expect("linked");
    assert_eq!(ask_in("work/current", "work/current"), 1);
    fs::remove_file(&current).expect("removed");
    symlink("releases/2", &current).expect("linked");
    assert_eq!(ask_in("work/current", "work/current"), 1);
    assert_eq!(ask_in("work/releases/2", "work/releases/2"), 2);
    scratch.again_well(&["stop"]);
    scratch.assert_nothing_left();
}
