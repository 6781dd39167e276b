//! Requests to `again`: its arguments, its environment, and the processes that it leaves behind.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use again_base::model::Exit;
use again_base::sys::{pidfd, process};

use super::order::Order;
use crate::helper;
use crate::settings::Settings;

/// Name of the timer that all triggers share. The Puppet module reserves it.
const TIMER: &str = "again-fleet";
/// Time limit of `again`, which waits up to 5 s for each record that another process has locked.
const PATIENCE: Duration = Duration::from_secs(30);
/// Directory of Puppet in the all-in-one packages. The default path of cron lacks it too.
const PUPPET: &str = "/opt/puppetlabs/bin";

/// Maximum size of the output of `again` with `--json`, in bytes. `again` itself bounds the output,
/// and all of it may be needed: a busy node begins many chains within seconds.
const LONGEST_OUTPUT: usize = 16 << 20;

/// Prefixes of the variables that systemd sets for a service (systemd.exec(5)), and of our own
/// settings. A run from cron has none of these.
const OURS: [&str; 12] = [
    "LISTEN_",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "SYSTEMD_",
    "MEMORY_PRESSURE_",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "MAINPID",
    "MANAGERPID",
    "TRIGGER_",
    "CREDENTIALS_DIRECTORY",
    "AGAIN_FLEET_",
];

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// Recorded by `again`, with its message.
    Recorded(String),
    /// Not recorded, for this reason.
    Refused(String),
    /// Not known whether it was recorded, for this reason.
    Unknown(String),
}

/// Sends a request to `again`. The process that `again` leaves behind then has its own scope, if it
/// could get one.
pub fn ask(settings: &Settings, order: &Order<'_>) -> Done {
    let program = settings.helper.display();
    if let Err((_, why)) = settings.check_cwd() {
        return Done::Refused(why);
    }
    let child = command(settings, order, std::env::vars_os()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => return Done::Refused(format!("{program} cannot be started: {e}")),
    };
    if !has_ended(&mut child) {
        // Requests that it has recorded by now stay recorded.
        let _ = (child.kill(), child.wait());
        return Done::Unknown(format!(
            "{program} has not answered within {} s",
            PATIENCE.as_secs()
        ));
    }
    let status = match child.wait() {
        Ok(status) => status,
        Err(e) => return Done::Unknown(format!("{program}: {e}")),
    };
    let line = line(&mut child);
    if status.success() {
        return Done::Recorded(line);
    }
    Done::Refused(if line.is_empty() {
        format!("{program} ended with {status}")
    } else {
        line
    })
}

/// Output of `again history --json`. `again` also fails if it cannot read the record of a pending
/// target, but still prints all events.
///
/// # Errors
/// `again` prints nothing; the message has the reason.
pub fn history(settings: &Settings) -> Result<String, String> {
    output(settings, "history", &[Exit::Failure])
}

/// Output of `again status --json`. `again` also fails if it cannot read a record, but still prints
/// all others.
///
/// # Errors
/// `again` prints nothing; the message has the reason.
pub fn status(settings: &Settings) -> Result<String, String> {
    output(settings, "status", &[Exit::NothingPending, Exit::Failure])
}

/// Output of a verb of `again` with `--json`, if the verb succeeds, or if it prints anything and
/// ends with one of these statuses.
fn output(settings: &Settings, verb: &str, exits: &[Exit]) -> Result<String, String> {
    let program = settings.helper.display();
    let mut command = plain(settings, std::env::vars_os());
    command.args([verb, "--json"]);
    let output = helper::output(&mut command, PATIENCE, LONGEST_OUTPUT);
    let (text, status) = output.map_err(|why| format!("{program}: {why}"))?;
    let is_one = |exit: &Exit| status.code() == Some(*exit as i32);
    if status.success() || !text.is_empty() && exits.iter().any(is_one) {
        return String::from_utf8(text).map_err(|_| format!("{program}: its output is not UTF-8"));
    }
    Err(format!("{program} ended with {status}"))
}

/// Command for a request. Only the delta and the word, which is data, come from triggers.
fn command(
    settings: &Settings,
    order: &Order<'_>,
    around: impl Iterator<Item = (OsString, OsString)>,
) -> Command {
    let mut command = plain(settings, around);
    command.arg("run").arg("--origin").arg(order.word.text());
    command
        .arg(format!("--name={TIMER}"))
        .arg(format!("--delta={}", order.delta.secs()));
    command.arg("--").args(&settings.run_cmd);
    command.current_dir(&settings.cwd);
    command
}

/// Command that runs `again`, without arguments.
fn plain(settings: &Settings, around: impl Iterator<Item = (OsString, OsString)>) -> Command {
    let mut command = Command::new(&settings.helper);
    command.env_clear().envs(environment(around));
    // The group is the current one. Setting it selects fork(2): posix_spawn(3) would leave signals
    // 32 and 33 ignored.
    command.gid(rustix::process::getegid().as_raw());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Environment as in a run from cron, as far as this unit has it.
fn environment(around: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let is_ours = |name: &OsStr| {
        OURS.iter()
            .any(|ours| name.as_encoded_bytes().starts_with(ours.as_bytes()))
    };
    let kept = around
        .filter(|(name, _)| !is_ours(name))
        .map(|(name, value)| {
            let value = if name == "PATH" {
                with_puppet(value)
            } else {
                value
            };
            (name, value)
        });
    kept.collect()
}

fn with_puppet(mut path: OsString) -> OsString {
    if std::env::split_paths(&path).all(|directory| directory != Path::new(PUPPET)) {
        path.push(":");
        path.push(PUPPET);
    }
    path
}

/// Waits until the program has ended. Returns false after [`PATIENCE`]. The output of the program
/// fits into its pipes.
fn has_ended(child: &mut Child) -> bool {
    let pid = i32::try_from(child.id()).unwrap_or(-1);
    match process::identify(pid).map(pidfd::hold) {
        Ok(Some(handle)) => handle.wait(PATIENCE),
        // A child of ours that has ended stays until it is reaped.
        _ => child.try_wait().is_ok_and(|status| status.is_some()),
    }
}

/// First line of the output, with the result or the reason.
fn line(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(out) = &mut child.stdout {
        let _ = out.take(4096).read_to_end(&mut text);
    }
    if let Some(errors) = &mut child.stderr {
        let _ = errors.take(4096).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let line = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    line.strip_prefix("again: ").unwrap_or(line).to_owned()
}

/// Processes in the control group of this service; none if this is not a service. When the service
/// ends, systemd ends them too.
pub fn group() -> Option<BTreeSet<i32>> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let procs = paths(&text)
        .into_iter()
        .find_map(|path| fs::read_to_string(path).ok())?;
    Some(procs.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Paths at which the processes of a service may be listed: in the unified hierarchy of control
/// groups, or in systemd's own (proc_pid_cgroup(5)).
fn paths(text: &str) -> Vec<PathBuf> {
    let listed = text.lines().flat_map(|line| {
        let (roots, path): (&[&str], &str) =
            match (line.strip_prefix("0::"), line.split_once(":name=systemd:")) {
                (Some(path), _) => (&["", "unified"], path),
                (None, Some((_, path))) => (&["systemd"], path),
                _ => (&[], ""),
            };
        let is_service = path.ends_with(".service");
        let roots = roots.iter().filter(move |_| is_service);
        roots.map(move |root| {
            Path::new("/sys/fs/cgroup")
                .join(root)
                .join(path.trim_start_matches('/'))
                .join("cgroup.procs")
        })
    });
    listed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(environment: &[(&str, &str)]) -> Vec<(String, String)> {
        let around = environment
            .iter()
            .map(|(n, v)| (OsString::from(n), OsString::from(v)));
        let text = |text: OsString| text.into_string().expect("plain");
        super::environment(around)
            .into_iter()
            .map(|(n, v)| (text(n), text(v)))
            .collect()
    }

    #[test]
    fn nothing_of_this_service_is_inherited() {
        let service = [
            "LISTEN_FDS",
            "LISTEN_PID",
            "LISTEN_FDNAMES",
            "INVOCATION_ID",
            "JOURNAL_STREAM",
            "SYSTEMD_EXEC_PID",
            "MEMORY_PRESSURE_WATCH",
            "NOTIFY_SOCKET",
            "WATCHDOG_USEC",
            "MAINPID",
            "AGAIN_FLEET_CONFIG",
            "TRIGGER_UNIT",
        ];
        for name in service {
            assert_eq!(names(&[(name, "1")]), [], "{name}");
        }
        let cron = [
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
            ("AGAIN_STATE_DIR", "/s"),
        ];
        assert_eq!(
            names(&cron),
            cron.map(|(n, v)| (n.to_owned(), v.to_owned()))
        );
    }

    #[test]
    fn puppet_is_found_where_its_packages_have_it() {
        let path = |path| names(&[("PATH", path)])[0].1.clone();
        assert_eq!(path("/usr/bin:/bin"), "/usr/bin:/bin:/opt/puppetlabs/bin");
        assert_eq!(path("/opt/puppetlabs/bin:/bin"), "/opt/puppetlabs/bin:/bin");
    }

    #[test]
    fn only_a_services_own_group_is_looked_at() {
        let listed = |text| {
            paths(text)
                .iter()
                .map(|path| path.to_str().expect("plain").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            listed("0::/system.slice/again-fleet-executor.service\n"),
            [
                "/sys/fs/cgroup/system.slice/again-fleet-executor.service/cgroup.procs",
                "/sys/fs/cgroup/unified/system.slice/again-fleet-executor.service/cgroup.procs"
            ]
        );
        assert_eq!(
            listed("4:memory:/x.service\n1:name=systemd:/system.slice/x.service\n"),
            ["/sys/fs/cgroup/systemd/system.slice/x.service/cgroup.procs"]
        );
        for elsewhere in ["0::/\n", "0::/user.slice/session-1.scope\n", "", "nonsense"] {
            assert!(listed(elsewhere).is_empty());
        }
    }
}
