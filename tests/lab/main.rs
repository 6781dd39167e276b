//! What must hold on a real, booted machine: units, cron, login sessions, shutdowns.
//!
//! Every test boots its own machine (a second) and makes real Puppet runs in it. Where a promise
//! rests on getting out of a control group there is a second test that shows the promise broken
//! without that, so that a lab that protects what it should kill cannot pass.

mod cron;
mod daemon;
mod disabled;
mod examples;
mod journal;
mod machine;
mod oneshot;
mod package;
mod pending;
mod pid1;
mod reboot;
mod session;
mod without_systemd_run;

use again_test_support::Lab;

/// A manifest that asks for one rerun of itself: the first run changes a file, the second finds it there.
/// From now on the daemon puts off its own runs, so that none of them does the job of a timer.
fn put_off_own_runs(lab: &Lab) {
    lab.sh("sed -i 's/^splay = false/splay = true\\nsplaylimit = 1h/' /etc/puppet/puppet.conf");
}

fn asks_once(notify: &str) -> String {
    asks_once_with("", notify)
}

/// The same, with more resources; `Exec['ask']` is the one that asks.
fn asks_once_with(more: &str, notify: &str) -> String {
    asks_once_set("", more, notify)
}

/// The same, with more settings of the class.
fn asks_once_set(settings: &str, more: &str, notify: &str) -> String {
    format!(
        "class {{ 'common::again': manage_binary => 'none', jitter => 0, {settings} }}
        {MARK}
        exec {{ 'ask': command => '/bin/touch /var/lib/asked', creates => '/var/lib/asked', notify => {notify} }}
        {more}\n"
    )
}

/// A manifest in which the run asks again until there have been so many runs.
fn asks_until(runs: u32) -> String {
    format!(
        "class {{ 'common::again': manage_binary => 'none', jitter => 0 }}
        {MARK}
        exec {{ 'ask':
          command => '/bin/true',
          unless  => 'test $(wc -l </var/log/lab/marks) -ge {runs}',
          provider => 'shell',
          require => Exec['mark'],
          notify  => Exec['again'],
        }}\n"
    )
}

/// Every catalog that is applied leaves a line in /var/log/lab/marks: uptime, AGAIN_RUN, pid of the run.
const MARK: &str = r#"
        exec { 'mark':
          command => ['/bin/sh', '-c', 'read up idle </proc/uptime; echo "$up ${AGAIN_RUN:-1} $PPID" >>/var/log/lab/marks'],
          before  => Exec['ask'],
        }"#;

fn delta(seconds: u32) -> String {
    format!(
        "Common::Again::Delta['later'] }}\n        common::again::delta {{ 'later': delta => {seconds}"
    )
}

/// One applied catalog.
#[derive(Debug, Clone, PartialEq)]
struct Mark {
    uptime: f64,
    run: u32,
    pid: u64,
}

fn marks(lab: &Lab) -> Vec<Mark> {
    lab.read("/var/log/lab/marks")
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut next = || words.next().expect("a mark has three words");
            Mark {
                uptime: next().parse().unwrap(),
                run: next().parse().unwrap(),
                pid: next().parse().unwrap(),
            }
        })
        .collect()
}

/// Waits until no timer, no process of a waiter or of who observes its rerun, no scope and no job of systemd is left, so that no
/// further run can begin; none may have begun by then.
#[track_caller]
fn nothing_more_happens(lab: &Lab) {
    let (runs, applied) = (lab.runs().len(), marks(lab).len());
    lab.wait_until("nothing is left to happen", 10, || {
        let waiters = lab.sh("pgrep -f '^again: timer ' || true");
        let jobs = lab.sh("systemctl list-jobs --plain --no-legend --no-pager");
        let is_quiet = lab.timers().is_empty() && lab.scopes().is_empty();
        (is_quiet && waiters.is_empty() && jobs.is_empty()).then_some(())
    });
    assert_eq!(lab.runs().len(), runs, "a run too many: {:#?}", lab.runs());
    assert_eq!(
        marks(lab).len(),
        applied,
        "a catalog too many: {:#?}",
        marks(lab)
    );
}
