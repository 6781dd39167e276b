//! The packages on a machine: installed, upgraded while timers are pending, removed, purged; by hand and by the class.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::{asks_once_set, delta, nothing_more_happens};
use again_test_support::lab::{Lab, Run};

/// Two releases of the packages, with the program that is tested.
fn packages() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let into = root.join("target/lab-packages");
        let _ = std::fs::remove_dir_all(&into);
        for release in ["1", "2"] {
            let built = Command::new(root.join("tests/tools/package"))
                .arg(&into)
                .env("RELEASE", release)
                .env("NO_BUILD", "1")
                .env("ONLY", "x86_64")
                .stdin(Stdio::null())
                .output()
                .expect("tests/tools/package can be started");
            assert!(built.status.success(), "no packages: {built:?}");
        }
        into
    })
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A machine that has packages in /srv/packages, and no program yet.
fn machine() -> Lab {
    Lab::boot_with(&[(packages(), "/srv/packages")])
}

/// dpkg asks nobody anything: no terminal.
fn dpkg(lab: &Lab, arguments: &str) -> String {
    lab.sh(&format!(
        "DEBIAN_FRONTEND=noninteractive dpkg {arguments} 2>&1 </dev/null"
    ))
}

fn install_deb(lab: &Lab, release: u32) -> String {
    dpkg(
        lab,
        &format!("-i /srv/packages/again_{VERSION}-{release}_amd64.deb"),
    )
}

fn is_there(lab: &Lab, path: &str) -> bool {
    lab.exec(&["test", "-e", path]).status() == 0
}

/// The class with the packaged program, by which a first run asks for one more after so many seconds.
fn ask(lab: &Lab, settings: &str, seconds: u32) -> (Run, Value) {
    let settings = format!("binary => '/usr/bin/again', manage_boot_unit => false, {settings}");
    lab.sh("rm -f /var/lib/asked");
    lab.manifest(&asks_once_set(&settings, "", &delta(seconds)));
    let run = lab.exec(&["puppet", "apply", "--color=false", "/root/site.pp"]);
    assert!(run.out.contains("again: scheduled:"), "{run:#?}");
    let timer = lab.pending(10);
    (lab.runs().pop().unwrap(), timer)
}

fn waiter(timer: &Value) -> u64 {
    timer["waiter"]["pid"].as_u64().expect("a waiter")
}

/// One rerun more than before, by this waiter, not early.
#[track_caller]
fn fires(lab: &Lab, before: usize, first: &Run, waiter: u64, seconds: f64) {
    let reruns = lab.wait_for_reruns(before + 1, 60);
    let again = &reruns[before];
    assert_eq!(again.pid, waiter, "another waiter has made it: {again:#?}");
    assert_eq!(again.argv, first.argv);
    let after = again.started_at - first.ended_at.unwrap();
    assert!(after >= seconds - 0.02, "early: after {after} s");
    assert_eq!(reruns.len(), before + 1);
}

#[track_caller]
fn is_gone(lab: &Lab, pid: u64) {
    lab.wait_until("a waiter has ended", 10, || {
        lab.group_of(pid).is_none().then_some(())
    });
}

#[test]
fn a_deb_is_installed_and_upgraded_while_a_timer_is_pending() {
    let lab = machine();
    install_deb(&lab, 1);
    assert_eq!(lab.sh("command -v again"), "/usr/bin/again\n");
    assert_eq!(lab.sh("again --version"), format!("again {VERSION}\n"));
    // Without having been enabled by anyone.
    assert_eq!(
        lab.sh("systemctl is-enabled again-resume.service"),
        "static\n"
    );
    let wanted = lab.sh("systemctl show -P Wants multi-user.target");
    assert!(wanted.contains("again-resume.service"), "{wanted}");

    let (first, timer) = ask(&lab, "", 12);
    install_deb(&lab, 2);
    assert!(dpkg(&lab, "-s again").contains(&format!("Version: {VERSION}-2")));
    // The waiter is the old program still, and the new one knows it.
    let exe = lab.sh(&format!("readlink /proc/{}/exe", waiter(&timer)));
    assert_eq!(exe, "/usr/bin/again (deleted)\n");
    let now = lab.pending(5);
    assert_eq!(
        (&now["chain"], waiter(&now)),
        (&timer["chain"], waiter(&timer))
    );
    fires(&lab, 0, &first, waiter(&timer), 12.0);
    nothing_more_happens(&lab);

    // The package's own unit, in the next boot.
    let (first, timer) = ask(&lab, "", 20);
    lab.reboot();
    let resumed = lab.pending(15);
    assert_eq!(resumed["chain"], timer["chain"]);
    let unit = lab.sh("systemctl show -P FragmentPath again-resume.service");
    assert!(
        unit.ends_with("/lib/systemd/system/again-resume.service\n"),
        "{unit}"
    );
    assert_eq!(
        lab.sh("systemctl show -P Result again-resume.service"),
        "success\n"
    );
    fires(&lab, 1, &first, waiter(&resumed), 20.0);
    nothing_more_happens(&lab);

    // And upgraded once more with an old waiter, stopped by the new program.
    let (_, timer) = ask(&lab, "", 3600);
    install_deb(&lab, 1);
    let said = lab.sh("again stop");
    assert!(said.contains("again: stopped: timer 'later'"), "{said}");
    is_gone(&lab, waiter(&timer));
}

/// Everyone who may be waiting when the package goes.
struct Waiting {
    roots: u64,
    persons: u64,
    elsewhere: u64,
}

fn waiting_everywhere(lab: &Lab) -> Waiting {
    let (_, timer) = ask(lab, "", 3600);
    let pid = |text: String| {
        let status: Value = serde_json::from_str(&text).expect("JSON");
        waiter(&status["targets"][0]["timers"][0])
    };
    lab.sh("su - person -c 'again run --delta 1h -- /usr/bin/touch /home/person/ran'");
    lab.sh("again run --state-dir /srv/elsewhere --delta 1h -- /usr/bin/touch /root/ran");
    Waiting {
        roots: waiter(&timer),
        persons: pid(lab.sh("su - person -c 'again status --json'")),
        elsewhere: pid(lab.sh("again status --json --state-dir /srv/elsewhere")),
    }
}

/// Nobody waits whom nobody can see; what is not a waiter of this machine's program is left alone.
#[track_caller]
fn all_have_ended(lab: &Lab, waiting: &Waiting, said: &str) {
    assert!(said.contains("again: stopped: timer 'later'"), "{said}");
    for pid in [waiting.roots, waiting.persons, waiting.elsewhere] {
        is_gone(lab, pid);
    }
    assert!(!is_there(lab, "/usr/bin/again"));
    assert!(!is_there(
        lab,
        "/usr/lib/systemd/system/again-resume.service"
    ));
    assert!(!is_there(
        lab,
        "/usr/lib/systemd/system/multi-user.target.wants/again-resume.service"
    ));
    assert_eq!(lab.reruns().len(), 0);
}

#[test]
fn a_deb_that_is_removed_leaves_no_waiter_and_purged_it_takes_its_own_directories() {
    let lab = machine();
    install_deb(&lab, 1);
    let waiting = waiting_everywhere(&lab);
    // Half of the waiters have the program of the older release.
    install_deb(&lab, 2);
    lab.sh("mkdir -p /var/log/again && touch /var/log/again/x");
    // A driver is in somebody's sight.
    lab.sh("mkfifo /root/go; (exec again converge -- sh -c 'touch /root/driven; read line </root/go' >/dev/null 2>&1 </dev/null & echo $! >/root/driver)");
    lab.wait_until("the driver's run has begun", 10, || {
        is_there(&lab, "/root/driven").then_some(())
    });
    let driver: u64 = lab.read("/root/driver").trim().parse().unwrap();

    // The same script in a chroot on this machine, whose program is not this one.
    lab.sh("mkdir /srv/root && mount -t tmpfs tmpfs /srv/root && cd /srv/root && mkdir usr proc tmp && mount --bind /usr usr && \
        mount -t proc proc proc && ln -s usr/bin usr/lib usr/lib64 . && cp /var/lib/dpkg/info/again.postrm tmp && \
        chroot . /bin/sh -c 'readlink /proc/1/exe && /tmp/again.postrm remove' && umount proc usr");
    for pid in [waiting.roots, waiting.persons, waiting.elsewhere] {
        assert!(
            lab.group_of(pid).is_some(),
            "a chroot has ended a waiter of the machine"
        );
    }

    let said = dpkg(&lab, "-r again");
    all_have_ended(&lab, &waiting, &said);
    assert!(
        lab.group_of(driver).is_some(),
        "the driver was ended: {said}"
    );
    lab.sh("echo >/root/go");
    assert!(
        lab.history().contains("stopped by root"),
        "{}",
        lab.history()
    );
    assert!(is_there(&lab, "/var/log/again"));

    dpkg(&lab, "-P again");
    for path in ["/var/lib/again", "/var/log/again"] {
        assert!(!is_there(&lab, path), "{path} is still there");
    }
    // Puppet's, the person's, and what was put elsewhere by somebody.
    for path in [
        "/etc/again.toml",
        "/home/person/.local/state/again",
        "/srv/elsewhere",
    ] {
        assert!(is_there(&lab, path), "{path} is gone");
    }
    for path in ["/root/ran", "/home/person/ran"] {
        assert!(!is_there(&lab, path), "{path}: a rerun after all");
    }

    // Installed once more, nothing of before comes back.
    install_deb(&lab, 2);
    assert!(lab.timers().is_empty());
}

#[test]
fn an_rpm_is_installed_upgraded_and_removed() {
    let lab = machine();
    // On a Debian nothing that rpm knows of provides /bin/sh.
    let rpm = |order: &str, release: u32| {
        lab.sh(&format!(
            "rpm {order} --nodeps /srv/packages/again-{VERSION}-{release}.x86_64.rpm 2>&1"
        ))
    };
    rpm("-i", 1);
    assert_eq!(lab.sh("command -v again"), "/usr/bin/again\n");
    assert_eq!(lab.sh("rpm -V --nodeps again"), "");
    let (first, timer) = ask(&lab, "", 10);
    rpm("-U", 2);
    assert_eq!(
        lab.sh("rpm -q again"),
        format!("again-{VERSION}-2.x86_64\n")
    );
    assert_eq!(waiter(&lab.pending(5)), waiter(&timer));
    fires(&lab, 0, &first, waiter(&timer), 10.0);
    nothing_more_happens(&lab);
    lab.sh("rm /var/log/lab/runs");

    let waiting = waiting_everywhere(&lab);
    let said = lab.sh("rpm -e again 2>&1");
    all_have_ended(&lab, &waiting, &said);
    // rpm has no purge; what is recorded stays.
    assert!(is_there(&lab, "/var/lib/again/history.jsonl"));
    assert!(is_there(&lab, "/etc/again.toml"));
}

/// `manage_binary => 'package'`, from a repository, as an operator has it.
#[test]
fn the_class_installs_upgrades_and_removes_the_package() {
    let lab = machine();
    lab.write(
        "/root/publish",
        "set -eu; mkdir -p /srv/repository; cd /srv/repository; deb=$1; cp \"/srv/packages/$deb\" .
        { dpkg-deb -f \"$deb\"; echo \"Filename: ./$deb\"; echo \"Size: $(stat -c %s \"$deb\")\"
          echo \"SHA256: $(sha256sum <\"$deb\" | cut -d ' ' -f 1)\"; echo; } >>Packages
        echo 'deb [trusted=yes] file:/srv/repository ./' >/etc/apt/sources.list; apt-get -q update",
    );
    let publish = |release: u32| {
        lab.sh(&format!(
            "sh /root/publish again_{VERSION}-{release}_amd64.deb"
        ));
    };
    let apply = |manifest: &str| {
        lab.manifest(manifest);
        let run = lab.exec(&[
            "puppet",
            "apply",
            "--color=false",
            "--detailed-exitcodes",
            "/root/site.pp",
        ]);
        (run.status(), format!("{}{}", run.out, run.err))
    };
    let class = |settings: &str, more: &str| {
        format!(
            "class {{ 'common::again': manage_binary => 'package', jitter => 0, {settings} }}\n{more}"
        )
    };

    publish(1);
    let (code, said) = apply(&class("", ""));
    assert_eq!(code, 2, "{said}");
    assert!(dpkg(&lab, "-s again").contains(&format!("Version: {VERSION}-1")));
    assert_eq!(
        lab.sh("sed -n 's/^# binary: //p' /etc/again.toml"),
        "/usr/bin/again\n"
    );
    let (code, said) = apply(&class("", "notice($facts['again']['version'])"));
    assert_eq!(code, 0, "a second apply changes something: {said}");
    assert!(
        said.contains(VERSION),
        "the fact does not find the program: {said}"
    );
    assert!(lab.timers().is_empty());
    // The class's unit and the package's are one to systemd.
    lab.sh("systemctl daemon-reload");
    assert_eq!(
        lab.sh("systemctl show -P FragmentPath again-resume.service"),
        "/etc/systemd/system/again-resume.service\n"
    );
    assert_eq!(
        lab.sh("systemctl is-enabled again-resume.service"),
        "enabled\n"
    );

    // The run that upgrades the package asks for another one.
    publish(2);
    let (code, said) = apply(&class(
        "package_ensure => 'latest'",
        "common::again::delta { 'later': delta => 5 }
        Package['again'] ~> Common::Again::Delta['later']",
    ));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("again: scheduled:"), "{said}");
    assert!(dpkg(&lab, "-s again").contains(&format!("Version: {VERSION}-2")));
    lab.wait_for_reruns(1, 60);
    nothing_more_happens(&lab);
    let unchanged = r#""outcome":"unchanged""#;
    assert!(lab.history().contains(unchanged), "{}", lab.history());

    // Upgraded from outside while one is pending, and then taken away with one pending.
    let (code, said) = apply(&class(
        "",
        "common::again::delta { 'far': delta => '1h' }
        notify { 'x': notify => Common::Again::Delta['far'] }",
    ));
    assert_eq!(code, 2, "{said}");
    let waits = waiter(&lab.pending(5));
    let (code, said) = apply(&class("ensure => absent", ""));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("again: stopped: timer 'far'"), "{said}");
    is_gone(&lab, waits);
    for path in [
        "/usr/bin/again",
        "/etc/again.toml",
        "/etc/systemd/system/again-resume.service",
        "/usr/lib/systemd/system/again-resume.service",
        "/usr/lib/systemd/system/again-pending.path",
        "/var/lib/again",
        "/var/log/again",
    ] {
        assert!(!is_there(&lab, path), "{path} is still there");
    }
    let left = lab
        .sh("find /etc/systemd /usr/lib/systemd /usr/share -name '*again*' -not -path '*/doc/*'");
    assert_eq!(left, "");
    let (code, said) = apply(&class("ensure => absent", ""));
    assert_eq!(code, 0, "a second apply changes something: {said}");
}
