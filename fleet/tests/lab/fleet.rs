use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use again_test_support::lab::{Image, Run};
use again_test_support::net::{Host, Net};
use again_test_support::{Ended, Lab};
use serde_json::Value;

use crate::ca::Ca;

/// Kind of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Etcd,
    Nats,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Etcd => "etcd",
            Kind::Nats => "nats",
        }
    }

    fn service(self) -> &'static str {
        match self {
            Kind::Etcd => "etcd",
            Kind::Nats => "nats-server",
        }
    }
}

const HOSTS: [Host<'static>; 4] = [SERVER, WEB1, LB1, WEB2];
pub const SERVER: Host<'static> = Host {
    name: "server.test",
    address: "10.77.0.1",
};
pub const WEB1: Host<'static> = Host {
    name: "web1.test",
    address: "10.77.0.2",
};
pub const LB1: Host<'static> = Host {
    name: "lb1.test",
    address: "10.77.0.3",
};
/// Second web server, which some tests boot.
pub const WEB2: Host<'static> = Host {
    name: "web2.test",
    address: "10.77.0.4",
};

/// Path of the library that gives a process another clock.
fn clock() -> PathBuf {
    let libraries = Path::new("/usr/lib").join(format!("{ARCH}-linux-gnu"));
    libraries.join("faketime/libfaketime.so.1")
}

/// Manifest of the runs that triggers start: real Puppet, with a change each time.
pub const RUN: &str = "exec { 'ran': command => '/bin/sh -c \"echo ran >>/var/log/ran\"' }\n";

/// Backend and two nodes: web1 sends triggers, lb1 is their target.
pub struct Fleet {
    pub kind: Kind,
    pub server: Lab,
    pub web1: Lab,
    pub lb1: Lab,
    pub net: Net,
}

impl Fleet {
    /// Boots the machines, and sets them up with the classes.
    pub fn new(kind: Kind) -> Fleet {
        Fleet::with(kind, "")
    }

    /// Boots a fleet with more settings of the nodes' class.
    pub fn with(kind: Kind, settings: &str) -> Fleet {
        Fleet::certified(kind, settings, |machines| {
            for (lab, host) in machines {
                certify(lab, host);
            }
        })
    }

    /// Boots a fleet whose machines get their certificates in this way.
    pub fn certified(
        kind: Kind,
        settings: &str,
        certify: impl FnOnce(&[(&Lab, &Host<'static>); 3]),
    ) -> Fleet {
        let net = Net::new();
        // The CA is made once here, not by several threads.
        Ca::get();
        let (server, web1, lb1) = at_once(
            || bare(&net, &SERVER, Image::Server),
            || bare(&net, &WEB1, Image::Node),
            || bare(&net, &LB1, Image::Node),
        );
        certify(&[(&server, &SERVER), (&web1, &WEB1), (&lb1, &LB1)]);
        let set = |lab: Lab| {
            lab.write("/root/run.pp", RUN);
            set(&lab, kind, "", settings);
            lab
        };
        let (server, web1, lb1) = at_once(
            move || {
                set_backend(&server, kind);
                server
            },
            || set(web1),
            || set(lb1),
        );
        let fleet = Fleet {
            kind,
            server,
            web1,
            lb1,
            net,
        };
        for node in [&fleet.web1, &fleet.lb1] {
            is_linked(node, true);
        }
        fleet
    }

    /// Runs Puppet on web1 with a change that notifies a trigger with these parameters; returns the
    /// trigger's messages in the report.
    #[track_caller]
    pub fn fire(&self, parameters: &str) -> String {
        let (status, said) = self.try_to_fire(parameters);
        assert_eq!(status, 2, "{said}");
        said
    }

    /// Does the same, and returns the run's status too.
    #[track_caller]
    pub fn try_to_fire(&self, parameters: &str) -> (i32, String) {
        let backend = self.kind.name();
        let manifest = format!(
            "exec {{ 'change': command => '/bin/true' }}
            ~> trigger {{ 'look again': hosts => ['lb1.test'], provider => '{backend}', {parameters} }}\n"
        );
        self.web1.write("/root/fire.pp", &manifest);
        let run = puppet(&self.web1, &["/root/fire.pp"]);
        (run.status(), reported(&self.web1))
    }

    /// Waits until lb1 has made this number of runs for triggers, which must then be all.
    #[track_caller]
    pub fn runs(&self, count: usize) -> Vec<Run> {
        let has_run = || {
            let runs = ran(&self.lb1);
            let ended = runs.iter().filter(|run| run.ended.is_some()).count();
            (ended >= count).then_some(runs)
        };
        let runs = self.lb1.wait_until("a run", 60, has_run);
        assert_eq!(runs.len(), count, "{runs:#?}");
        runs
    }

    /// Waits until nothing is under way, neither on web1 nor in the backend.
    #[track_caller]
    pub fn is_settled(&self) {
        self.web1.wait_until("an empty outbox", 60, || {
            check(&self.web1, "outbox")
                .1
                .starts_with("0 triggers")
                .then_some(())
        });
        if self.kind == Kind::Etcd {
            self.server.wait_until("no register", 60, || {
                (!self.keys().iter().any(|key| key.starts_with("to/"))).then_some(())
            });
        }
    }

    /// Starts or stops the backend.
    pub fn backend(&self, is_there: bool) {
        let verb = if is_there { "start" } else { "stop" };
        let service = self.kind.service();
        self.server.sh(&format!("systemctl {verb} {service}"));
    }

    /// Keys in an etcd.
    pub fn keys(&self) -> Vec<String> {
        assert_eq!(self.kind, Kind::Etcd);
        let all = self.server.sh(
            "cd /etc/again-backend-etcd; ETCDCTL_API=3 etcdctl --endpoints=https://server.test:2379 --cacert=ca.pem --cert=cert.pem \
             --key=key.pem get --prefix --keys-only again/v1/test/",
        );
        let keys = all
            .lines()
            .filter_map(|line| line.strip_prefix("again/v1/test/"));
        keys.map(str::to_owned).collect()
    }
}

/// Boots a machine with the programs, which knows the names of all others.
pub fn bare(net: &Net, host: &Host<'_>, image: Image) -> Lab {
    let program = Path::new(env!("CARGO_BIN_EXE_again-fleet"));
    let clock = clock();
    let binds = [(program, "/srv/again-fleet"), (&clock, "/srv/clock.so")];
    let lab = empty(net, host, image, &binds);
    lab.sh("install -m 755 /srv/again /srv/again-fleet /usr/local/bin");
    lab
}

/// Boots a machine without the programs, which knows the names of all others, with these files of
/// the host besides the CA.
pub fn empty(net: &Net, host: &Host<'_>, image: Image, binds: &[(&Path, &str)]) -> Lab {
    let ca = Ca::get().path("");
    let binds = [&[(&*ca, "/srv/ca")], binds].concat();
    let lab = Lab::boot_on(net, host, image, &binds);
    let names = HOSTS.map(|host| format!("{} {}\n", host.address, host.name));
    let names = format!("127.0.0.1 localhost\n{}", names.concat());
    lab.write("/etc/hosts", &names);
    lab
}

/// Copies certificate and key to Puppet's paths.
pub fn certify(lab: &Lab, host: &Host<'_>) {
    lab.sh(&format!(
        "cd /var/lib/puppet/ssl; name={}
        install -o puppet -g puppet -m 644 /srv/ca/$name.pem certs/$name.pem
        install -o puppet -g puppet -m 640 /srv/ca/$name.key private_keys/$name.pem
        install -o puppet -g puppet -m 644 /srv/ca/ca.pem certs/ca.pem
        install -o puppet -g puppet -m 644 /srv/ca/crl.pem crl.pem
        sed -i \"s/^certname = .*/certname = $name/\" /etc/puppet/puppet.conf",
        host.name
    ));
}

/// Boots a machine with a backend that the class sets up, and with these files of the host.
pub fn backend(net: &Net, kind: Kind, binds: &[(&Path, &str)]) -> Lab {
    let lab = empty(net, &SERVER, Image::Server, binds);
    certify(&lab, &SERVER);
    set_backend(&lab, kind);
    lab
}

fn set_backend(lab: &Lab, kind: Kind) {
    let backend = kind.name();
    let class = format!("class {{ 'common::again::backend': backend => '{backend}' }}\n");
    apply(lab, "/root/backend.pp", &class);
}

/// Runs three functions at the same time, and returns their results.
fn at_once<A: Send, B: Send, C: Send>(
    one: impl FnOnce() -> A + Send,
    two: impl FnOnce() -> B + Send,
    three: impl FnOnce() -> C + Send,
) -> (A, B, C) {
    std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(one), scope.spawn(two));
        let three = three();
        (join(one), join(two), three)
    })
}

fn join<T>(started: std::thread::ScopedJoinHandle<'_, T>) -> T {
    started
        .join()
        .unwrap_or_else(|e| std::panic::resume_unwind(e))
}

/// Sets up a node with the classes, with these additional settings of `again` and of again-fleet.
pub fn set(lab: &Lab, kind: Kind, helper: &str, settings: &str) {
    apply(lab, "/root/node.pp", &classes(kind, helper, settings));
}

/// Manifest that sets up a node.
pub fn classes(kind: Kind, helper: &str, settings: &str) -> String {
    format!(
        "class {{ 'common::again': manage_binary => 'none', {helper} }}
        class {{ 'common::again::fleet':
          manage_binary => 'none',
          backend        => '{}',
          endpoints     => ['server.test'],
          accept        => ['web*.test'],
          namespace     => 'test',
          run_cmd       => 'puppet apply /root/run.pp',
          {settings}
        }}\n",
        kind.name()
    )
}

/// Writes a manifest and runs `puppet apply`, which must not fail; returns its status and the
/// messages.
#[track_caller]
pub fn apply(lab: &Lab, path: &str, manifest: &str) -> (i32, String) {
    lab.write(path, manifest);
    applied(lab, path, &[])
}

/// Runs `puppet apply` with an existing manifest.
#[track_caller]
pub fn applied(lab: &Lab, path: &str, options: &[&str]) -> (i32, String) {
    let run = puppet(lab, &[&[path], options].concat());
    assert!([0, 2].contains(&run.status()), "{run:#?}");
    (run.status(), run.out)
}

pub fn puppet(lab: &Lab, words: &[&str]) -> Ended {
    let apply = ["puppet", "apply", "--color=false", "--detailed-exitcodes"];
    lab.exec(&[&apply, words].concat())
}

/// Messages about the trigger in the report of the last run.
pub fn reported(lab: &Lab) -> String {
    lab.sh(
        "ruby -rpuppet -e 'puts YAML.unsafe_load_file(ARGV[0]).logs.select { |log| log.source.include?(%q(Trigger[)) }.map(&:message)' \
         /var/cache/puppet/state/last_run_report.yaml",
    )
}

/// Waits until the service of a node is connected to the backend, or is not.
#[track_caller]
pub fn is_linked(lab: &Lab, is_up: bool) {
    let state = if is_up { "ok" } else { "error" };
    lab.wait_until("the link", 60, || {
        (check(lab, "link").0 == state).then_some(())
    });
}

/// State and message of a check in `again-fleet check`.
pub fn check(lab: &Lab, about: &str) -> (String, String) {
    let out = lab.exec(&["again-fleet", "check", "--json"]);
    let all: Value = serde_json::from_str(&out.out).unwrap_or_else(|e| panic!("{e}: {out:#?}"));
    let mut checks = all["checks"].as_array().expect("checks").iter();
    let one = checks.find(|one| one["name"] == about);
    let text = |key: &str| {
        one.and_then(|one| one[key].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    (text("state"), text("what"))
}

/// Runs that triggers have started on a node.
pub fn ran(lab: &Lab) -> Vec<Run> {
    let mut runs = lab.runs();
    runs.retain(|run| run.argv.iter().any(|word| word == "/root/run.pp"));
    runs
}
