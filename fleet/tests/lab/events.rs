//! Events of a Puppet run on one node, which another node sees while the run continues.

use serde_json::Value;

use crate::fleet::{Fleet, Kind, applied};

/// Manifest that changes a file, refreshes the service, and then continues for a while. Secrets are
/// where people put them.
const RUN: &str = "
again_events { 'this node': }
file { '/root/hidden': content => 'planted-in-a-file', show_diff => false }
file { '/root/sensitive': content => Sensitive('planted-as-sensitive') }
exec { '/bin/true --password=planted-in-a-command': }
define say() {
  exec { 'step': command => \"/bin/true ${title}\" }
}
say { 'planted-in-a-define': }
file { '/root/first': content => 'CONTENT' }
~> service { 'httpd': ensure => running }
-> exec { 'wait': command => '/bin/sleep 5' }
";

const HTTPD: &str = "[Service]\nExecStart=/bin/sleep infinity\n";

/// Script that prefixes each event with the time of its arrival.
const WATCH: &str = r#"
again-fleet events --follow --json | while read -r line; do
  echo "$(date -u +%Y-%m-%dT%H:%M:%S.%3NZ) $line"
done >/root/events
"#;

/// Time of arrival at lb1, and content, of each event. The event itself contains times too.
fn heard(fleet: &Fleet) -> Vec<(String, Value)> {
    let text = fleet.lb1.sh("cat /root/events");
    // The last line may be incomplete.
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter_map(|(at, told)| Some((at.to_owned(), serde_json::from_str(told).ok()?)))
        .collect()
}

/// Time at which lb1 received this change of a resource of web1, and the time of the change.
#[track_caller]
fn of(heard: &[(String, Value)], resource: &str, change: &str) -> (String, String) {
    let is_it = |told: &Value| told["resource"] == resource && told["change"] == change;
    let found = heard.iter().find(|(_, told)| is_it(told));
    let (at, told) = found.unwrap_or_else(|| panic!("no {resource} {change} in {heard:#?}"));
    (at.clone(), told["at"].as_str().expect("a time").to_owned())
}

/// The nodes of the fleet must not have done anything except being set up, with events.
pub fn are_seen_elsewhere(fleet: &Fleet) {
    fleet.web1.write("/etc/systemd/system/httpd.service", HTTPD);
    fleet
        .web1
        .sh("systemctl daemon-reload; systemctl start httpd");
    fleet.lb1.write("/root/watch", WATCH);
    fleet.lb1.sh("systemd-run --unit=watch sh /root/watch");
    for content in ["1", "2"] {
        fleet
            .web1
            .write("/root/run.pp", &RUN.replace("CONTENT", content));
        let (status, said) = applied(&fleet.web1, "/root/run.pp", &[]);
        assert_eq!(status, 2, "{said}");
    }
    let heard = fleet.lb1.wait_until(
        "the ends of both runs, and of those that set the nodes up",
        60,
        || {
            let heard = heard(fleet);
            let ends = heard
                .iter()
                .filter(|(_, told)| told["transaction"].is_string());
            (ends.count() == 4).then_some(heard)
        },
    );
    let (_, end) = of(&heard, "Exec[wait]", "changed");
    for (resource, change) in [
        ("File[/root/first]", "changed"),
        ("Service[httpd]", "refreshed"),
    ] {
        let (at, done) = of(&heard, resource, change);
        println!("{resource} is {change} on web1 at {done}, and lb1 heard it at {at}");
        assert!(
            at < end,
            "{resource}: {at}, and the run went on until {end}"
        );
    }
    of(&heard, "Exec[hidden]", "changed");
    let everything = "cat /root/events";
    assert!(!fleet.lb1.sh(everything).contains("planted"));
    let data = match fleet.kind {
        Kind::Etcd => "/var/lib/etcd",
        Kind::Nats => "/var/lib/nats",
    };
    // A plain word is searched for too, so that a search without a result is known to work.
    let found = |what: &str| {
        let count = fleet
            .server
            .sh(&format!("grep -ra '{what}' {data} | wc -l"));
        count.trim().parse::<u64>().expect("a number")
    };
    assert!(found("Service.httpd") > 0);
    assert_eq!(found("planted"), 0);
    // All events have left the node, and the executor has marked the files, which the service
    // cannot do.
    fleet.web1.wait_until("marked files", 60, || {
        let left = fleet.web1.sh("ls /var/spool/again-fleet");
        left.lines()
            .all(|name| name.ends_with("@told"))
            .then_some(())
    });
    let touched = fleet.web1.sh(
        "setpriv --reuid=again-fleet --regid=again-fleet --clear-groups touch /var/spool/again-fleet/x 2>&1 || true",
    );
    assert!(touched.contains("Permission denied"), "{touched}");
    assert!(
        fleet
            .web1
            .sh("again metrics")
            .contains("again_fleet_events_sent_total")
    );
    fleet.lb1.sh("systemctl stop watch");
}
