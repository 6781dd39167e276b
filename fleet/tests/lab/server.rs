use std::process::Stdio;

use again_test_support::Lab;
use again_test_support::lab::{Image, Run};
use again_test_support::net::{Host, Net};
use serde_json::Value;

use crate::fleet::{LB1, SERVER, WEB1, bare, check, is_linked, reported};

/// Manifest of the site. The backend gets its list of nodes from the CA, which is on the machine
/// that compiles the catalogs.
const SITE: &str = "
class { 'common::again': manage_binary => 'none', wait_for_slot => true }
node 'server.test' {
  class { 'common::again::backend': permissions => true }
  class { 'common::again::fleet':
    manage_binary => 'none', endpoints => ['server.test'], accept => [], firing_group => 'puppet',
    operators => ['server.test'], require => Class['common::again::backend'],
  }
}
node 'web1.test' {
  class { 'common::again::fleet': manage_binary => 'none', endpoints => ['server.test'], accept => [], events => true, SLOTS }
  exec { 'change': command => '/bin/true', onlyif => '/bin/rm /root/change' }
  ~> trigger { 'look again': hosts => ['lb1.test'] }
}
node 'lb1.test' {
  class { 'common::again::fleet': manage_binary => 'none', endpoints => ['server.test'], accept => ['web*.test', 'server.test'], events => true, SLOTS }
}
";

/// Limit of one agent at a time, including the server's own.
const SLOTS: &str = "slots => { group => 'puppetserver', limit => 1 }";

const CONF: &str = "[main]
ssldir = /var/lib/puppet/ssl
certname = NAME
server = server.test
keylength = 2048
[agent]
splay = false
runinterval = 1h
[server]
cadir = /var/lib/puppetserver/ca
autosign = true
storeconfigs = false
environment_timeout = 0
";

fn machine(net: &Net, host: &Host<'_>, image: Image) -> Lab {
    let lab = bare(net, host, image);
    lab.write("/etc/puppet/puppet.conf", &CONF.replace("NAME", host.name));
    lab.sh("rm -rf /var/lib/puppet/ssl");
    lab
}

fn site(server: &Lab, slots: &str) {
    let manifest = SITE.replace("SLOTS", slots);
    server.write(
        "/etc/puppet/code/environments/production/manifests/site.pp",
        &manifest,
    );
}

fn server(net: &Net) -> Lab {
    let lab = machine(net, &SERVER, Image::Server);
    site(&lab, SLOTS);
    // With TLS 1.3 ruby 3.1 waits half a minute for a session ticket in an agent's first run. The
    // server must not look for updates on the Internet.
    lab.sh(
        "sed -i 's/ssl-port: 8140/ssl-port: 8140, ssl-protocols: [TLSv1.2]/' /etc/puppet/puppetserver/conf.d/webserver.conf
        sed -i /analytics/d /etc/puppet/puppetserver/services.d/bootstrap.cfg
        # Debian's unit asks by kill(1), as the user puppet, whether a process lives that may still be root's.
        mkdir /etc/systemd/system/puppetserver.service.d
        printf '[Service]\\nType=exec\\n' > /etc/systemd/system/puppetserver.service.d/type.conf
        systemctl daemon-reload
        systemctl start --no-block puppetserver",
    );
    lab
}

/// Runs the agent; returns its status.
#[track_caller]
fn agent(lab: &Lab) -> i32 {
    let run = lab.exec(&["puppet", "agent", "--test", "--color=false"]);
    assert!([0, 2].contains(&run.status()), "{run:#?}");
    run.status()
}

/// Runs that triggers have started.
fn ran(lab: &Lab) -> Vec<Run> {
    let mut runs = lab.runs();
    runs.retain(|run| run.argv.iter().any(|word| word == "--no-splay"));
    runs
}

#[track_caller]
fn has_run(lab: &Lab, count: usize) {
    let ended = |run: &&Run| run.ended.is_some();
    lab.wait_until("a run", 90, || {
        (ran(lab).iter().filter(ended).count() >= count).then_some(())
    });
    assert_eq!(ran(lab).len(), count);
}

fn serial(lab: &Lab) -> String {
    lab.sh("openssl x509 -noout -serial -in /var/lib/puppet/ssl/certs/web1.test.pem")
}

#[test]
fn agents_of_a_puppet_server_whose_ca_says_who_may_use_the_backend() {
    let net = Net::new();
    let server = server(&net);
    let (web1, lb1) = (
        machine(&net, &WEB1, Image::Node),
        machine(&net, &LB1, Image::Node),
    );
    server.wait_until("the Puppet server", 300, || {
        let state = server.exec(&["systemctl", "is-active", "puppetserver"]).out;
        assert_ne!(state, "failed\n");
        (state == "active\n").then_some(())
    });
    for node in [&server, &web1, &lb1] {
        node.sh("puppet ssl bootstrap --waitforcert 5");
    }
    assert_eq!(agent(&server), 2);
    assert_eq!((agent(&web1), agent(&lb1)), (2, 2));
    for node in [&server, &web1, &lb1] {
        is_linked(node, true);
        assert_eq!(check(node, "permissions").0, "ok");
    }
    let users = server.sh(
        "cd /etc/again-backend-etcd; ETCDCTL_API=3 etcdctl --endpoints=https://server.test:2379 --cacert=ca.pem --cert=cert.pem \
         --key=key.pem user list",
    );
    assert_eq!(users, "lb1.test\nroot\nserver.test\nweb1.test\n");
    assert_eq!(agent(&server), 0);
    certificate_named_root_is_an_error(&server);

    // A run from cron, on a target whose daemon is running.
    lb1.sh("systemctl start puppet");
    lb1.wait_until("the daemon's run", 90, || {
        lb1.read("/var/cache/puppet/state/agent_catalog_run.lock")
            .is_empty()
            .then_some(())
    });
    by_cron(&web1, &format!("touch /root/change && {ONETIME}"));
    has_run(&lb1, 1);
    web1.wait_until("its report", 60, || {
        reported(&web1)
            .contains("delivered to etcd for 1 node: lb1.test")
            .then_some(())
    });

    // The other node sees the events of cron's run and of the daemon's.
    let told = |on: &Lab, node: &str, what: &str| {
        on.wait_until("an event", 60, || {
            let events = on.exec(&["again-fleet", "events", "--json"]).out;
            let mut lines = events.lines();
            let is_it = |line: &str| line.contains(node) && line.contains(what);
            lines.any(is_it).then_some(())
        });
    };
    told(&lb1, "\"web1.test\"", "Trigger[look again]");
    told(&web1, "\"lb1.test\"", "\"transaction\"");

    // `puppet agent --disable` of Puppet itself.
    lb1.sh("puppet agent --disable 'a longer job'");
    let fire = "exec again-fleet trigger --to lb1.test --wait >/root/told 2>&1";
    let mut fire = web1.spawn(&["sh", "-c", fire], Stdio::null());
    web1.wait_until("it is told", 60, || {
        let told = web1.read("/root/told");
        told.contains("held as long as the puppet agent is disabled: a longer job")
            .then_some(())
    });
    lb1.wait_until("it is held", 60, || {
        lb1.timers()
            .iter()
            .any(|timer| timer["state"] == "held")
            .then_some(())
    });
    assert_eq!(ran(&lb1).len(), 1);
    lb1.sh("puppet agent --enable");
    has_run(&lb1, 2);
    assert!(fire.wait().expect("its end").success());

    // The user of a report processor, who is not root.
    let fire = [
        "runuser",
        "-u",
        "puppet",
        "--",
        "again-fleet",
        "trigger",
        "--to",
        "lb1.test",
        "--wait",
    ];
    let told = server.exec(&fire);
    assert!(told.ok().contains("1 of 1 node done"));
    has_run(&lb1, 3);

    // A lost certificate is replaced; from then on the backend refuses the old one.
    let started =
        || web1.sh("systemctl show -P ExecMainStartTimestampMonotonic again-fleet.service");
    let before = (serial(&web1), started());
    server.sh("puppetserver ca clean --certname web1.test");
    web1.sh(
        "cd /var/lib/puppet/ssl; rm certs/web1.test.pem *_keys/web1.test.pem
        puppet ssl bootstrap --waitforcert 5",
    );
    assert_ne!(serial(&web1), before.0);
    assert_eq!(agent(&server), 2);
    web1.wait_until("a restart", 60, || (started() != before.1).then_some(()));
    is_linked(&web1, true);
    web1.sh("touch /root/change");
    assert_eq!(agent(&web1), 2);
    let said = reported(&web1);
    assert!(
        said.contains("delivered to etcd for 1 node: lb1.test"),
        "{said}"
    );
    has_run(&lb1, 4);
    share_a_slot(&server, &web1, &lb1);
}

/// The CA signs a certificate for etcd's superuser, and revokes it.
fn certificate_named_root_is_an_error(server: &Lab) {
    let remedy = "puppetserver ca clean --certname root";
    server.sh("puppetserver ca generate --certname root");
    let (state, what) = check(server, "ca");
    assert_eq!(state, "error");
    assert!(what.contains("signed a certificate named root"), "{what}");
    let run = server.exec(&["puppet", "agent", "--test", "--color=false"]);
    assert_eq!(run.status(), 1, "{run:#?}");
    assert!(run.err.contains(remedy), "{run:#?}");
    server.sh(remedy);
    assert_eq!(check(server, "ca"), (String::new(), String::new()));
    agent(server);
}

/// Command of a run in a crontab.
const ONETIME: &str = "puppet agent --onetime --no-daemonize";

/// Makes cron start this command once, now.
fn by_cron(node: &Lab, command: &str) {
    node.write("/etc/cron.d/agent", &format!("@reboot root {command}\n"));
    node.sh("rm -f /run/crond.reboot; systemctl restart cron");
}

/// Takes the only slot on the server until it is released.
fn hold(server: &Lab) {
    let words = "echo $$ >/root/holder; again-fleet slot --group puppetserver && touch /root/has; exec sleep 600";
    // The container ends with the test.
    #[expect(clippy::zombie_processes)]
    let _holder = server.spawn(&["sh", "-c", words], Stdio::null());
    server.wait_until("its slot", 60, || {
        let has = server.exec(&["test", "-e", "/root/has"]).status();
        (has == 0).then_some(())
    });
}

fn let_go(server: &Lab) {
    server.sh("kill $(cat /root/holder); rm /root/has");
}

/// Waits until exactly these nodes run or wait, and the first of them has the slot.
#[track_caller]
fn stand(server: &Lab, names: &[&str]) {
    server.wait_until("all of them in line", 90, || {
        let shown = server.sh("again-fleet slots puppetserver --json");
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let nodes = shown["groups"][0]["nodes"].as_array();
        let nodes = nodes.map_or(&[][..], Vec::as_slice);
        let mut stand: Vec<_> = nodes.iter().map(|one| &one["node"]).collect();
        stand
            .get_mut(1..)
            .unwrap_or_default()
            .sort_by_key(|name| name.as_str());
        (stand == names).then_some(())
    });
}

/// Four runs share a slot: the daemon's, one by hand, one from cron, and one that a trigger starts.
fn share_a_slot(server: &Lab, web1: &Lab, lb1: &Lab) {
    // The run by hand has a terminal, whose output goes to a file.
    let by_hand = "exec script --quiet --return --flush --command 'puppet agent --test --color=false' /root/hand";
    hold(server);
    lb1.sh("systemctl kill --kill-who=main --signal=USR1 puppet");
    let mut hand = web1.spawn(&["sh", "-c", by_hand], Stdio::null());
    stand(server, &["server.test", "lb1.test", "web1.test"]);
    let shown = server.sh("again-fleet slots");
    assert!(
        shown.contains("puppetserver: 1 of 1 slots taken"),
        "{shown}"
    );
    assert!(shown.contains("web1.test  waits since "), "{shown}");
    let hand_said = web1.read("/root/hand");
    assert!(!hand_said.contains("Applying configuration"));
    let why = "the run waits for a slot of group 'puppetserver', which has 1: ";
    assert!(hand_said.contains(why), "{hand_said}");
    let_go(server);
    let ended = hand.wait().expect("its end");
    assert!([Some(0), Some(2)].contains(&ended.code()), "{ended}");
    assert!(web1.read("/root/hand").contains("Applying configuration"));
    stand(server, &[]);

    // The waiter of a triggered run waits, until an operator removes the slot from its holder.
    hold(server);
    let before = ran(lb1).len();
    web1.sh("again-fleet trigger --to lb1.test");
    lb1.wait_until("the words of its waiter", 60, || {
        let status = lb1.exec(&["again", "status"]).out;
        status.contains("waits for a slot").then_some(())
    });
    stand(server, &["server.test", "lb1.test"]);
    server.sh("again-fleet release puppetserver server.test");
    has_run(lb1, before + 1);
    stand(server, &[]);
    let_go(server);

    // A run from cron waits as well, until waiting is disabled with one parameter.
    hold(server);
    by_cron(web1, &format!("{ONETIME}; echo $? >/root/ended"));
    stand(server, &["server.test", "web1.test"]);
    let_go(server);
    web1.wait_until("the end of cron's run", 60, || {
        (web1.exec(&["cat", "/root/ended"]).out == "0\n").then_some(())
    });
    stand(server, &[]);
    site(
        server,
        &SLOTS.replace("limit => 1", "limit => 1, prerun => false"),
    );
    assert_eq!(agent(web1), 2);
    hold(server);
    web1.sh(&format!("timeout 90 {ONETIME}"));
    stand(server, &["server.test"]);
    let_go(server);
}
