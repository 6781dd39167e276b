//! Service and executor of a node on a booted machine, as the class `common::again::fleet` sets
//! them up. Another program replaces the service, with its user, its certificate and its sandbox,
//! as after a compromise. The executor is the real one.

use std::path::Path;

use crate::ca::Ca;
use crate::fired::{by, trigger};
use again_fleet::handover::ask;
use again_fleet::wire::trigger::Trigger;
use again_test_support::Lab;
use serde_json::Value;

const TAKEN_OVER: &str = include_str!("compromised.rb");

/// Script that sends a question, and kills the executor as soon as it has answered.
const ASK_AND_KILL: &str = r#"
require 'socket'
UNIXSocket.open('/run/again-fleet/executor') do |root|
  root.write([File.read('/root/question')].pack('H*'))
  answer = root.readpartial(100_000)
  Process.kill(:KILL, Integer(ARGV[0]))
  puts answer.byteslice(8..)
end
"#;

/// Program that records the environment of a run.
const LOOK: &str = r#"#!/bin/sh
exec >"$1.new" 2>&1
grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Seccomp_filters|Cap[A-Za-z]*|Umask|SigBlk|SigIgn):' /proc/self/status
for namespace in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$namespace; done
cat /proc/self/limits /proc/self/oom_score_adj
nice
pwd
env | grep -E '^(HOME|LOGNAME)=' | sort
env | grep -E '^(LISTEN|INVOCATION|JOURNAL|NOTIFY|WATCHDOG|SYSTEMD|MEMORY_PRESSURE|AGAIN_FLEET)' || echo nothing of a service
find /proc/self/fd -lname 'socket:*'
mv "$1.new" "$1"
"#;

const CLASS: &str = "
class { 'common::again': manage_binary => 'none', manage_boot_unit => false }
class { 'common::again::fleet':
  manage_binary => 'none',
  endpoints     => ['etcd.test'],
  accept        => ['web*.test'],
  namespace     => 'test',
  certname      => 'lb1.test',
  certificates  => {
    'cert' => '/srv/own/lb1.test.pem',
    'key'  => '/srv/own/lb1.test.key',
    'ca'   => '/srv/own/ca.pem',
    'crl'  => '/srv/own/crl.pem',
  },
  run_cmd       => ['/usr/local/bin/look', '/var/log/look.triggered'],
}
";

/// Boots a machine with everything except what the class installs.
fn machine() -> Lab {
    let ca = Ca::get().path("");
    let program = Path::new(env!("CARGO_BIN_EXE_again-fleet"));
    let lab = Lab::boot_with(&[(&ca, "/srv/ca"), (program, "/srv/again-fleet")]);
    lab.sh("install -m 755 /srv/again /usr/local/bin/again");
    lab.sh("mkdir /srv/own && cp /srv/ca/*.pem /srv/ca/*.key /srv/own");
    // The user of the service cannot read the program below a private directory of the developer.
    lab.sh("install -m 755 /srv/again-fleet /usr/local/lib/again-fleet");
    lab.write("/usr/local/lib/taken-over", TAKEN_OVER);
    lab.write("/usr/local/bin/look", LOOK);
    lab.write(
        "/usr/local/bin/again-fleet",
        "#!/bin/sh\n[ \"$1\" != serve ] || exec ruby /usr/local/lib/taken-over\nexec /usr/local/lib/again-fleet \"$@\"\n",
    );
    lab.sh("chmod 755 /usr/local/bin/*");
    lab
}

#[track_caller]
fn apply(lab: &Lab, manifest: &str) -> String {
    lab.write("/root/fleet.pp", manifest);
    let run = lab.exec(&[
        "puppet",
        "apply",
        "--color=false",
        "--detailed-exitcodes",
        "/root/fleet.pp",
    ]);
    assert!(
        [0, 2].contains(&run.status()),
        "{run:#?}\n{}",
        lab.sh("journalctl --no-pager -n 30 -u 'again-fleet*'")
    );
    format!("{}: {}", run.status(), run.out)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hands over a value as the compromised service, and returns the executor's answer.
fn hand_over(lab: &Lab, value: Vec<u8>) -> (String, String) {
    let question = ask(&[value]).expect("a question");
    let state = "/var/lib/again-fleet/serve";
    lab.write(&format!("{state}/question.new"), &hex(&question));
    lab.sh(&format!(
        "rm -f {state}/answer; mv {state}/question.new {state}/question"
    ));
    let answer = lab.wait_until("an answer", 20, || {
        let text = lab.read(&format!("{state}/answer"));
        serde_json::from_str::<Value>(&text).ok()
    });
    let text = |key: &str| answer[0][key].as_str().expect("text").to_owned();
    (text("outcome"), text("why"))
}

/// Powers of a compromised service, then the class's guarantees about the units, on one machine.
#[test]
fn executor_starts_only_signed_runs_outside_the_sandbox_and_its_units_come_and_go() {
    let lab = machine();
    let before = traces(&lab);
    apply(&lab, CLASS);
    only_signed_runs_start_outside_the_sandbox(&lab);
    executor_starts_whenever_it_is_asked(&lab);
    service_restarts_when_its_certificate_is_renewed(&lab);
    absent_leaves_nothing(&lab, &before);
}

fn only_signed_runs_start_outside_the_sandbox(lab: &Lab) {
    let again = apply(lab, CLASS);
    assert!(again.starts_with("0: "), "{again}");
    assert_eq!(lab.sh("systemctl is-active again-fleet.service again-fleet.socket again-fleet-executor.socket again-fleet-certificate.path"), "active\n".repeat(4));

    let saw: Value =
        serde_json::from_str(&lab.read("/var/lib/again-fleet/serve/saw")).expect("what it saw");
    assert_ne!(saw["uid"], 0);
    assert_eq!(
        (&saw["no_new_privs"], &saw["seccomp"]),
        (&"1".into(), &"2".into())
    );
    let begins = ["CERTIFICATE", "EC PRIVATE KEY", "CERTIFICATE", "X509 CRL"];
    assert_eq!(
        saw["credentials"],
        Value::from(
            begins
                .map(|what| format!("-----BEGIN {what}-----"))
                .to_vec()
        )
    );
    assert_eq!(saw["fired"], "/run/again-fleet/trigger");
    for forbidden in [
        "reads_numbers",
        "reads_shadow",
        "writes_programs",
        "writes_settings",
    ] {
        assert_eq!(saw[forbidden], false, "{forbidden}");
    }

    // No other user can send questions.
    for socket in ["trigger", "executor"] {
        let script = format!("UNIXSocket.new('/run/again-fleet/{socket}')");
        let other = lab.exec(&[
            "runuser", "-u", "person", "--", "ruby", "-rsocket", "-e", &script,
        ]);
        assert!(other.err.contains("Permission denied"), "{other:#?}");
    }
    assert_eq!(
        lab.sh("stat -c '%U %a' /var/lib/again-fleet /var/lib/again-fleet/serve /run/again-fleet"),
        "root 755\nagain-fleet 700\nroot 755\n"
    );

    // The node does not accept triggers with its own certificate.
    for (value, words) in [
        (
            by("lb1.test", &trigger("lb1.test")),
            "accept does not list the certname of this node, lb1.test",
        ),
        (
            by("lb1.test", &trigger("web1.test")),
            "lb1.test signed it in the name of web1.test",
        ),
        (b"/bin/sh -c id".to_vec(), "no envelope"),
    ] {
        let (outcome, why) = hand_over(lab, value);
        assert!(
            outcome == "refused" && why.contains(words),
            "{outcome}: {why}"
        );
    }
    assert_eq!(
        lab.sh("stat -c '%U %a' /var/lib/again-fleet/executor"),
        "root 700\n"
    );
    assert!(lab.history().is_empty(), "{}", lab.history());

    // The waiter outlives the executor, however soon that ends.
    let one = Trigger {
        delta: 2000,
        ..trigger("web1.test")
    };
    let question = ask(&[by("web1.test", &one)]).expect("a question");
    lab.write("/root/question", &hex(&question));
    lab.write("/root/ask-and-kill", ASK_AND_KILL);
    let answer = lab.sh(
        "ruby /root/ask-and-kill \"$(systemctl show -P MainPID again-fleet-executor.service)\"",
    );
    assert!(answer.contains("\"taken\""), "{answer}");
    let triggered = lab.wait_until("the run", 20, || {
        Some(lab.read("/var/log/look.triggered")).filter(|text| !text.is_empty())
    });

    lab.write(
        "/etc/cron.d/look",
        "@reboot root /usr/local/bin/look /var/log/look.cron\n",
    );
    lab.sh("rm -f /run/crond.reboot; systemctl restart cron");
    let cron = lab.wait_until("cron", 20, || {
        Some(lab.read("/var/log/look.cron")).filter(|text| !text.is_empty())
    });
    assert_eq!(triggered, cron);
    assert!(cron.contains("nothing of a service"), "{cron}");
}

/// Without a scope, a waiter would end with the service in which it was started.
#[test]
fn root_s_side_does_not_end_before_a_waiter_that_stays_with_it() {
    let lab = machine();
    apply(
        &lab,
        &CLASS.replace(
            "manage_boot_unit => false",
            "manage_boot_unit => false, pending => { 'scope' => 'never' }",
        ),
    );
    let unit = "/etc/systemd/system/again-fleet-executor.service.d/idle.conf";
    let briefly =
        "[Service]\nExecStart=\nExecStart=/usr/local/bin/again-fleet executor --idle 1s\n";
    lab.write(unit, briefly);
    lab.sh("systemctl daemon-reload");
    let one = Trigger {
        delta: 6000,
        ..trigger("web1.test")
    };
    assert_eq!(hand_over(&lab, by("web1.test", &one)).0, "taken");
    let is_active = || {
        lab.exec(&["systemctl", "is-active", "again-fleet-executor.service"])
            .out
    };
    lab.wait_until("the run", 20, || {
        Some(lab.read("/var/log/look.triggered")).filter(|text| !text.is_empty())
    });
    lab.wait_until("the end", 10, || {
        (is_active() == "inactive\n").then_some(())
    });
}

fn executor_starts_whenever_it_is_asked(lab: &Lab) {
    for n in 0..12 {
        let (outcome, why) = hand_over(lab, b"nothing".to_vec());
        assert_eq!(outcome, "refused", "{n}: {why}");
        // More restarts than any start limit of systemd allows.
        lab.sh(if n % 3 == 2 {
            "systemctl kill -s KILL again-fleet-executor.service"
        } else {
            "systemctl stop again-fleet-executor.service"
        });
    }
    assert_eq!(
        lab.sh("systemctl is-active again-fleet-executor.socket"),
        "active\n"
    );
}

fn service_restarts_when_its_certificate_is_renewed(lab: &Lab) {
    let started =
        || lab.sh("systemctl show -P ExecMainStartTimestampMonotonic again-fleet.service");
    let before = started();
    // Replaces the file, as Puppet does.
    lab.sh("cp /srv/ca/crl-web1.pem /srv/own/new && mv /srv/own/new /srv/own/crl.pem");
    lab.wait_until("a restart", 10, || (started() != before).then_some(()));
}

/// Files that the class made, and its user.
fn traces(lab: &Lab) -> String {
    lab.sh("find / -xdev -newer /etc/hostname -name '*again-fleet*' -not -path '/proc/*' | sort; getent passwd again-fleet || true")
}

fn absent_leaves_nothing(lab: &Lab, before: &str) {
    hand_over(lab, b"nothing".to_vec());
    let gone = "class { 'common::again::fleet': ensure => absent, manage_binary => 'none' }";
    apply(lab, gone);
    let again = apply(lab, gone);
    assert!(again.starts_with("0: "), "{again}");
    assert_eq!(traces(lab), before);
    assert_eq!(
        lab.sh("systemctl list-units --all --plain --no-legend --no-pager 'again-fleet*'"),
        ""
    );
    assert_eq!(lab.sh("ls -d /run/again-fleet/* 2>/dev/null || true"), "");
}
