use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use again_test_support::{ask_for, copy_tree, repository};
use serde_json::Value;

use crate::ca::Ca;
use crate::master::Master;
use crate::node::Node;
use crate::servers::{Kind, Server};

/// Resources that the class `common::again::fleet` declares.
const TELL: &str = "
again_inventory { 'this node':
  facts   => {
    'role'                => $facts['role'],
    'networking.hostname' => $facts['networking']['hostname'],
    'networking.ip'       => $facts['networking']['ip'],
  },
  program => $facts['rig_fleet'],
}
";

/// Manifest of a circle, against which puppet-kicker's README warns.
const CIRCLE: &str = "
exec { '/bin/true': }
case $facts['role'] {
  'haproxy': { notify { 'kick -> node': } }
  default:   { notify { 'kick -> haproxy': } }
}
";

/// Manifest that prints the nodes that the module of an environment finds.
const FOUND: &str = "
$found = servers_with_role('node').map |$server| { $server['certname'] }
notify { \"found ${join($found, ',')}\": }
";

/// Environments and their manifests: the unchanged examples.
const SCENES: [(&str, &str); 6] = [
    (
        "kick",
        include_str!("../../../puppet-module/examples/kick.pp"),
    ),
    (
        "trigger",
        include_str!("../../../puppet-module/examples/servers.pp"),
    ),
    (
        "class",
        include_str!("../../../puppet-module/examples/frontend.pp"),
    ),
    ("circle", CIRCLE),
    ("main", FOUND),
    ("branch", FOUND),
];

/// Facts that make processes of one machine separate nodes.
const FACTS: &str = "
facts = {
  role: 'ROLE', hostname: 'HOST', ipaddress: 'ADDRESS', networking: { 'hostname' => 'HOST', 'ip' => 'ADDRESS' },
  again_example_dir: 'DIR/example', rig_fleet: 'DIR/bin/again-fleet',
}
facts.each { |name, value| Facter.add(name) { has_weight(1000); setcode { value } } }
";

/// Configuration of Puppet. The `path` finds the node's own again-fleet in any of its runs.
const CONF: &str = "[main]
vardir = DIR/puppet
publicdir = DIR/puppet
rundir = DIR/puppet/run
logdir = DIR/puppet/log
ssldir = DIR/puppet/ssl
codedir = DIR/puppet/code
path = DIR/bin:/usr/sbin:/usr/bin:/sbin:/bin
postrun_command = DIR/bin/ran
color = false
";

pub struct Site {
    pub web1: Node,
    pub web2: Node,
    pub lb1: Node,
    pub master: Option<Master>,
    _etcd: Server,
}

impl Site {
    /// Starts a site of agents of a Puppet server that has a PuppetDB.
    pub fn with_a_server() -> Site {
        let etcd = Server::start(Kind::Etcd);
        let master = Master::start(&etcd);
        Site::of(etcd, Some(master))
    }

    /// Starts a site of nodes that apply their manifests themselves.
    pub fn without_a_server() -> Site {
        Site::of(Server::start(Kind::Etcd), None)
    }

    fn of(etcd: Server, master: Option<Master>) -> Site {
        let node = |name, role, host, address| {
            let node = Node::off(name, &etcd);
            let facts = FACTS.replace("ROLE", role).replace("HOST", host);
            for made in ["bin", "puppet/facts"] {
                fs::create_dir(node.path(made)).expect("made");
            }
            node.write("puppet/facts/node.rb", &facts.replace("ADDRESS", address));
            node.program(
                "bin/again-fleet",
                "#!/bin/sh\nAGAIN_CONFIG=DIR/again.toml exec FLEET \"$@\"\n",
            );
            node.program("bin/ran", "#!/bin/sh\necho >>DIR/ran\n");
            let words = words(&node, master.is_some());
            node.runs_this(&words.iter().map(String::as_str).collect::<Vec<_>>());
            node.set(&etcd);
            if master.is_some() {
                certify(&node.path("puppet/ssl"), name, name);
            } else {
                code(&node.path("puppet/code"));
            }
            starts(&node);
            node
        };
        let site = Site {
            web1: node("web1.test", "node", "web1", "10.0.0.1"),
            web2: node("web2.test", "node", "web2", "10.0.0.2"),
            lb1: node("lb1.test", "haproxy", "lb1", "10.0.0.9"),
            master,
            _etcd: etcd,
        };
        for node in [&site.web1, &site.web2, &site.lb1] {
            node.is_linked(true);
        }
        site
    }

    /// Runs Puppet on a node by hand, in this environment from now on; returns its output and the
    /// server's.
    #[track_caller]
    pub fn runs(&self, node: &Node, scene: &str) -> String {
        let conf = match &self.master {
            Some(master) => format!(
                "{CONF}[agent]\nserver = localhost\nserverport = {}\n",
                master.server.port
            ),
            None => format!("{CONF}[user]\nreports = store,kick\n"),
        };
        let own = format!(
            "color = false\ncertname = {}\nenvironment = {scene}\n",
            node.name
        );
        node.write("puppet/puppet.conf", &conf.replace("color = false\n", &own));
        if self.master.is_none() {
            node.write("site.pp", &manifest(scene));
        }
        let logged = self.logged().len();
        let words = words(node, self.master.is_some());
        let mut puppet = Command::new(&words[0]);
        puppet.args(&words[1..]);
        let done = puppet.output().expect("puppet");
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned() + &self.logged()[logged..];
        // No changes, or some.
        assert!(matches!(done.status.code(), Some(0 | 2)), "{said}");
        said
    }

    fn logged(&self) -> String {
        let master = self.master.as_ref();
        master.map_or(String::new(), |master| master.server.log())
    }

    /// Output at the end of a node's newest run, whatever started it.
    pub fn said_last(&self, node: &Node) -> String {
        let of_run = node.again(&["log"]).stdout;
        self.logged() + &String::from_utf8_lossy(&of_run)
    }

    /// Number of finished runs of a node.
    pub fn ran(&self, node: &Node) -> usize {
        let noted = fs::read_to_string(node.path("ran"));
        noted.unwrap_or_default().lines().count()
    }

    /// Waits until a node has made this number of runs and nothing is under way; returns the newest
    /// story.
    #[track_caller]
    pub fn settles(&self, node: &Node, runs: usize) -> Value {
        let pause = Duration::from_millis(500);
        let settled = ask_for(Duration::from_secs(600), pause, || {
            let story = self.lb1.command(&["story", "--json"]).output();
            let story: Value = serde_json::from_slice(&story.ok()?.stdout).ok()?;
            (self.ran(node) >= runs && story["over"] == true).then_some(story)
        });
        let ran = self.ran(node);
        assert_eq!(ran, runs, "runs of {}\n{}", node.name, self.said_last(node));
        settled.expect("what was asked for is not over")
    }

    /// Content of the balancer's file.
    pub fn balancer(&self) -> String {
        fs::read_to_string(self.lb1.path("example/haproxy.cfg")).expect("a file")
    }
}

/// Command of a node's runs.
fn words(node: &Node, has_server: bool) -> Vec<String> {
    let (conf, manifest) = (node.at("puppet"), node.at("site.pp"));
    let words = match has_server {
        true => ["puppet", "agent", "--confdir", &conf, "--test"],
        false => [
            "puppet",
            "apply",
            "--confdir",
            &conf,
            "--detailed-exitcodes",
        ],
    };
    let manifest = (!has_server).then_some(manifest);
    let words = words.into_iter().map(str::to_owned);
    words.chain(manifest).collect()
}

/// Starts a node's processes; it accepts triggers that the server sends on behalf of all.
pub fn starts(node: &Node) {
    node.set_also("accept_for = { 'server.test' = ['*.test'] }");
    node.set_also("hop_limit = 3");
    node.take();
    node.start();
}

/// Writes an ssldir with the certificate of one of the CA's names, under this name.
pub fn certify(ssl: &Path, from: &str, name: &str) {
    for (from, to) in [
        ("ca.pem".to_owned(), "certs/ca.pem".to_owned()),
        ("crl.pem".to_owned(), "crl.pem".to_owned()),
        (format!("{from}.pem"), format!("certs/{name}.pem")),
        (format!("{from}.key"), format!("private_keys/{name}.pem")),
    ] {
        let to = ssl.join(to);
        fs::create_dir_all(to.parent().expect("a directory")).expect("made");
        fs::write(to, Ca::get().read(&from)).expect("written");
    }
}

/// Writes the module and the environments.
pub fn code(code: &Path) {
    copy_tree(
        &repository().join("puppet-module"),
        &code.join("modules/common"),
    );
    for (scene, _) in SCENES {
        let manifests = code.join("environments").join(scene).join("manifests");
        fs::create_dir_all(&manifests).expect("made");
        fs::write(manifests.join("site.pp"), manifest(scene)).expect("written");
    }
    change(&code.join("environments/branch/modules/common"));
}

/// Writes the module of a branch, whose function finds other names.
fn change(module: &Path) {
    copy_tree(&repository().join("puppet-module"), module);
    let function = module.join("lib/puppet/functions/common/again/servers.rb");
    let text = fs::read_to_string(&function).expect("a function");
    let changed = text.replace("'certname' => node['certname'])", "'certname' => 'branch')");
    assert_ne!(changed, text);
    fs::write(function, changed).expect("written");
}

fn manifest(scene: &str) -> String {
    let found = SCENES.iter().find(|(name, _)| *name == scene);
    let (_, example) = found.expect("a scene");
    format!("{TELL}{example}")
}
