use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use again_test_support::lab::Image;
use again_test_support::net::{Host, Net};
use again_test_support::{Ended, Lab};

use crate::fleet::{LB1, RUN, SERVER, WEB1, apply, certify, empty, is_linked, reported};

const QUICK_START: &str = include_str!("../../../doc/fleet/quick-start.md");
/// The pages whose commands are run.
const PAGES: &str = concat!(
    include_str!("../../../doc/fleet/quick-start.md"),
    include_str!("../../../doc/fleet/guide.md"),
    include_str!("../../../doc/fleet/operations.md"),
);
const PACKAGES: &str = "/srv/to";

/// Text of the page with the names of these three machines.
fn named_here(text: &str) -> String {
    let backend = text.replace("etcd1.example.com", SERVER.name);
    backend.replace(".example.com", ".test")
}

/// Code blocks of this language in the first section of the quick start.
fn first_blocks(language: &str) -> Vec<String> {
    let (_, section) = QUICK_START
        .split_once("## The first fleet in ten minutes\n")
        .expect("a section");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let fence = format!("```{language}\n");
    let blocks = section.split(&*fence).skip(1);
    let block = |text: &str| named_here(text.split_once("\n```").expect("an end").0);
    blocks.map(block).collect()
}

/// Commands in the pages, after a prompt or between backquotes, and the machine on which each is
/// run.
fn typed() -> Vec<(String, String)> {
    let mut all = Vec::new();
    let at_a_prompt = |line: &str| {
        let (node, command) = line.split_once("$ ")?;
        let is_node = ["web1", "lb1", "server"].contains(&node);
        is_node.then(|| (node.to_owned(), command.to_owned()))
    };
    all.extend(PAGES.lines().filter_map(at_a_prompt));
    // Outside the blocks, every second piece is between backquotes.
    let prose: String = PAGES.split("```").step_by(2).collect();
    let spans = prose.split('`').skip(1).step_by(2);
    let programs = ["again ", "again-fleet ", "systemctl ", "journalctl "];
    let spans = spans.filter(|span| programs.iter().any(|one| span.starts_with(one)));
    all.extend(spans.map(|span| ("lb1".to_owned(), span.to_owned())));
    for (_, command) in &mut all {
        *command = named_here(&command.replace("--to NODE", "--to lb1.example.com"));
    }
    all.dedup();
    all
}

/// Boots a machine with its Puppet certificates, and the packages available.
fn fresh(net: &Net, host: &Host<'_>, image: Image, packages: &Path) -> Lab {
    let lab = empty(net, host, image, &[(packages, PACKAGES)]);
    lab.sh("umount /etc/puppet/code/modules/common && rmdir /etc/puppet/code/modules/common");
    certify(&lab, host);
    lab.sh(&format!(
        "puppet module install --ignore-dependencies {PACKAGES}/again-common-*.tar.gz"
    ));
    lab
}

fn shown(lab: &Lab, node: &str, command: &str) -> Ended {
    let bounded = format!(
        "exec timeout 60 bash -c '{}'",
        command.replace('\'', r"'\''")
    );
    let ended = lab.exec(&["bash", "-c", &bounded]);
    println!("{node}$ {command}\n{}{}", ended.out, ended.err);
    ended
}

struct Site {
    server: Lab,
    web1: Lab,
    lb1: Lab,
    _net: Net,
}

impl Site {
    fn new() -> Site {
        let packages = std::env::var_os("AGAIN_FLEET_UPGRADE_FROM");
        let packages =
            packages.expect("AGAIN_FLEET_UPGRADE_FROM is not set: tests/upgrade/run does");
        let packages = PathBuf::from(packages);
        let net = Net::new();
        let on = |host, image| fresh(&net, host, image, &packages);
        Site {
            server: on(&SERVER, Image::Server),
            web1: on(&WEB1, Image::Node),
            lb1: on(&LB1, Image::Node),
            _net: net,
        }
    }

    fn named(&self, node: &str) -> &Lab {
        match node {
            "server" => &self.server,
            "web1" => &self.web1,
            _ => &self.lb1,
        }
    }
}

#[test]
#[ignore = "takes packages: tests/upgrade/run"]
fn somebody_new_has_a_first_fleet_within_ten_minutes_and_each_command_of_the_page_is_one() {
    let began = Instant::now();
    let site = Site::new();
    let [backend, class, trigger] = &first_blocks("puppet")[..] else {
        panic!("the page has other blocks");
    };

    let firing_only = class.replace("['web*.test']", "[]");
    assert_ne!(firing_only, *class);
    apply(
        &site.server,
        "/root/backend.pp",
        &format!("{backend}\n{firing_only}"),
    );
    // One node uses the program of the module, the other the package. Neither has a Puppet server:
    // "a masterless node has its `puppet apply …`".
    let masterless = "run_cmd => 'puppet apply /root/run.pp', # ";
    let class = class.replace("accept ", &format!("{masterless}\n  accept "));
    let packaged = class.replace(
        masterless,
        &format!("manage_binary => 'package', {masterless}"),
    );
    site.lb1.sh(&format!(
        "dpkg -i {PACKAGES}/again_*_amd64.deb {PACKAGES}/again-fleet_*_amd64.deb"
    ));
    let helper = "class { 'common::again': manage_binary => 'package' }\n";
    for (lab, manifest) in [
        (&site.web1, class.clone()),
        (&site.lb1, format!("{helper}{packaged}")),
    ] {
        lab.write("/root/run.pp", RUN);
        apply(lab, "/root/node.pp", &manifest);
        is_linked(lab, true);
    }
    let commands = first_blocks("console");
    let commands: Vec<_> = commands
        .iter()
        .map(|block| {
            let line = block.lines().next().expect("a command");
            line.split_once("$ ").expect("a prompt")
        })
        .collect();
    let [check, by_hand] = commands[..] else {
        panic!("the page has other commands: {commands:?}");
    };
    let said = shown(site.named(check.0), check.0, check.1).ok();
    assert!(said.lines().all(|line| line.starts_with("ok ")), "{said}");
    let said = shown(site.named(by_hand.0), by_hand.0, by_hand.1);
    assert_eq!(said.status(), 0, "{said:#?}");
    assert!(format!("{}{}", said.out, said.err).contains("1 of 1 node done in"));
    let took = began.elapsed();
    println!(
        "from three machines to the first run elsewhere: {} s",
        took.as_secs()
    );
    assert!(took < Duration::from_secs(600), "{took:?}");

    let template = "template('profile/shop.conf.erb')";
    let trigger = trigger.replace(template, "\"shop\\n\"");
    site.web1.sh("mkdir -p /etc/httpd/conf.d");
    apply(&site.web1, "/root/trigger.pp", &trigger);
    let said = reported(&site.web1);
    let (to, event) = (
        "delivered to etcd for 1 node: lb1.test",
        "Triggered 'refresh' from 1 event",
    );
    assert!(said.contains(to) && said.contains(event), "{said}");

    each_command_is_one(&site);
}

/// Whatever its result, no command of the page is unknown or hangs.
fn each_command_is_one(site: &Site) {
    let typed = typed();
    assert!(typed.len() > 25, "{typed:?}");
    for (node, command) in typed {
        let ended = shown(site.named(&node), &node, &command);
        let said = format!("{}{}", ended.out, ended.err);
        let is_unknown = [
            "Usage:",
            "unexpected argument",
            "unrecognized",
            "not found",
            "Unknown",
        ];
        let unknown = is_unknown.iter().find(|words| said.contains(**words));
        assert_eq!(unknown, None, "{node}$ {command}: {ended:#?}");
        // 2 means that the arguments or the settings are invalid. 124 is timeout's: nothing on the
        // page may hang. The others are the shell's: the command cannot be run, or was not found.
        let is_bad = [2, 124, 126, 127].contains(&ended.status());
        assert!(!is_bad, "{node}$ {command}: {ended:#?}");
    }
}
