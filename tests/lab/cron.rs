//! cron: it mails what the job prints, once the last holder of the job's pipe is gone.

use crate::{asks_once, delta, nothing_more_happens};
use again_test_support::Lab;

/// Runs the command as a job of cron, now: a job for the boot, and a cron that takes its start for one.
fn job(lab: &Lab, command: &str) {
    lab.write("/etc/cron.d/puppet", &format!("@reboot root {command}\n"));
    lab.sh("rm -f /run/crond.reboot; systemctl restart cron");
}

struct Mail {
    at: f64,
    text: String,
}

fn mails(lab: &Lab) -> Vec<Mail> {
    lab.sh(
        "cd /var/mail; for m in mail-*; do [ ! -e \"$m\" ] || { cat \"$m\"; printf '\\0'; }; done",
    )
    .split('\0')
    .filter(|text| !text.is_empty())
    .map(|text| {
        let (at, text) = text.strip_prefix("@@ ").unwrap().split_once('\n').unwrap();
        Mail {
            at: at.parse().unwrap(),
            text: text.to_owned(),
        }
    })
    .collect()
}

#[test]
fn the_rerun_of_a_cron_job_happens_and_the_mail_does_not_wait_for_it() {
    let lab = Lab::boot();
    lab.manifest(&asks_once(&delta(6)));
    job(&lab, "puppet apply --color=false /root/site.pp");

    let reruns = lab.wait_for_reruns(1, 40);
    let runs = lab.runs();
    assert_eq!(runs.len(), 2, "{runs:#?}");
    assert!(
        runs[0].group.contains("cron.service"),
        "not a job of cron: {}",
        runs[0].group
    );
    assert!(
        reruns[0].group.ends_with(".scope"),
        "the rerun is in {}",
        reruns[0].group
    );
    assert!(
        reruns[0].started >= runs[0].ended.unwrap() + 6.0 - 0.02,
        "early"
    );
    assert_eq!(reruns[0].argv, ["apply", "--color=false", "/root/site.pp"]);

    nothing_more_happens(&lab);
    let mails = mails(&lab);
    assert_eq!(mails.len(), 1, "not one mail for one job");
    assert!(
        mails[0].text.contains("again: scheduled:"),
        "{}",
        mails[0].text
    );
    assert_eq!(
        mails[0].text.matches("Applied catalog").count(),
        1,
        "{}",
        mails[0].text
    );
    let delay = mails[0].at - runs[0].ended_at.unwrap();
    assert!(
        delay < 3.0,
        "the mail came {delay} s after the job, the waiter held its pipe"
    );
}

#[test]
fn a_silent_cron_job_stays_silent() {
    let lab = Lab::boot();
    lab.manifest(&asks_once("Exec['again']"));
    job(&lab, "puppet apply --logdest syslog /root/site.pp");
    lab.wait_for_reruns(1, 40);
    nothing_more_happens(&lab);
    assert_eq!(lab.runs().len(), 2);
    let mails = mails(&lab);
    assert!(mails.is_empty(), "{}", mails[0].text);
}
