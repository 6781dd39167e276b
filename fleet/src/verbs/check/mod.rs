//! `again-fleet check`: checks whether this node can send and accept triggers, and suggests fixes.

/// Checks of the backend without the service.
mod backend;
/// The files with certificates.
mod files;
/// Result of a check.
mod finding;
/// Findings from the state that the service reports.
mod how;
/// Certificates that make a node etcd's superuser.
mod superuser;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use again_base::layout::{Look, say};
use again_base::model::{Moment, Walltime};
use again_base::puppet::cmdline::parse;
use again_base::puppet::prefix;
use again_base::sys::clock::moment;
use again_base::sys::file::read_regular;
use again_base::sys::process::os;
use serde_json::json;

use self::finding::{Finding, Grade};
use super::service::{Conversation, Heard, PATIENCE, socket};
use super::{Exit, Problem, waiting};
use crate::ask::{Answer, How, Question};
use crate::backend::{NO_LOCKS, NO_PLACES};
use crate::cli::Check;
use crate::policy::page::{self, Page};
use crate::puppet::certificates;
use crate::settings::{self, Backend, Flags, Settings, Surroundings, Trust};
use crate::spool::requests::Requests;

/// Runs all checks and prints the findings.
///
/// # Errors
/// Standard output cannot be written.
pub fn main(flags: &Flags, around: &Surroundings, args: &Check) -> Result<Exit, Problem> {
    let now = moment();
    let found = match settings::settings(flags, around) {
        Ok(settings) => examined(&settings, &around.root, &now),
        Err(e) => vec![Finding::error("settings", e.0, "see again-fleet.toml(5)")],
    };
    if args.json {
        let checks: Vec<_> = found.iter().map(|one| {
            json!({"name": one.about, "state": one.grade.to_string(), "what": one.what, "to_do": one.todo})
        }).collect();
        let all = json!({"schema": 1, "version": env!("CARGO_PKG_VERSION"), "checks": checks});
        say(&all.to_string())?;
    } else {
        let look = Look::of_this_process();
        for one in &found {
            say(&one.line(&look))?;
        }
    }
    let worst = found.iter().map(|one| one.grade).max();
    Ok(match worst {
        Some(Grade::Error) => Exit::Failed,
        _ => Exit::Done,
    })
}

/// Finding about a superuser certificate, if etcd takes its users from certificates.
fn superuser(settings: &Settings, root: &Path, now: Walltime) -> Option<Finding> {
    let takes_users = settings.backend == Backend::Etcd && settings.tls;
    takes_users.then(|| superuser::look(&certificates(root).authority, now))?
}

fn examined(settings: &Settings, root: &Path, now: &Moment) -> Vec<Finding> {
    let mut found = set(settings);
    found.push(helper(settings));
    found.extend(run_cmd(settings));
    found.push(trust(settings));
    if settings.tls || settings.trust == Trust::Puppet {
        found.extend(files::look(settings, now.wall));
    }
    found.extend(superuser(settings, root, now.wall));
    found.extend(backend::look(settings));
    let how = ask(settings);
    match &how {
        Ok(how) => found.extend(how::judge(how, settings, now.wall)),
        Err(problem) => found.push(Finding::error(
            "service",
            problem.clone(),
            "without it nothing is fired or taken here",
        )),
    }
    found.extend(requests(settings));
    found.push(take_socket(settings));
    found.extend(ledger(&settings.state_dir, now));
    found
}

/// Finding about requests that wait on disk for the service.
fn requests(settings: &Settings) -> Option<Finding> {
    let requests = Requests::beside(&settings.spool_dir);
    let (what, todo) = match requests.listing() {
        Ok(found) => (
            waiting::count(&requests, &found)?,
            "start the service, or see its log",
        ),
        Err(e) if e.kind() == ErrorKind::NotFound => return None,
        Err(e) => (
            format!("{}: {e}", requests.path().display()),
            "until then no request waits on disk; check as root",
        ),
    };
    Some(Finding::warning("requests", what, todo))
}

/// Findings about the executor's ledger, if it is readable: senders whose triggers will soon be
/// held.
fn ledger(state_dir: &Path, now: &Moment) -> Vec<Finding> {
    let path = state_dir.join(page::FILE);
    let text = read_regular(&path, page::LARGEST, 0).unwrap_or_default();
    let page = Page::parse(&text).map(|(page, _)| page.replays.warnings(now));
    let warnings = page.unwrap_or_default().into_iter();
    let found = warnings.map(|what| Finding::warning("ledger", what, how::FEWER_NAMES));
    found.collect()
}

/// Findings about the settings alone.
fn set(settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    let name = match settings.certname() {
        Ok(name) => name.to_string(),
        Err(e) => {
            found.push(Finding::error("settings", e.0, "see again-fleet.toml(5)"));
            return found;
        }
    };
    let Settings {
        backend, namespace, ..
    } = settings;
    let what = format!("this node is {name}, its fleet '{namespace}', its backend {backend}");
    found.push(Finding::ok("settings", what));
    found.push(match settings.rules() {
        Ok(rules) if rules.accept.from.is_empty() && rules.accept.on_behalf.is_empty() => {
            Finding::ok(
                "accept",
                "nobody's triggers are taken; this node only fires",
            )
        }
        Ok(rules) => {
            let count = rules.accept.from.len() + rules.accept.on_behalf.len();
            let s = again_base::layout::plural(count);
            Finding::ok("accept", format!("triggers are taken by {count} rule{s}"))
        }
        Err(e) => Finding::error("accept", e.0, "until then nothing is taken here"),
    });
    if let Some(group) = &settings.slots_group {
        let limit = settings.slots_limit;
        found.push(if settings.backend.supports_slots() {
            let what = format!("runs wait for a slot of group '{group}', which has {limit}");
            Finding::ok("slots", what)
        } else {
            Finding::error("slots", NO_PLACES, "use etcd, or leave slots_group out")
        });
    }
    if !settings.backend.supports_slots() && settings.locks().is_ok_and(|all| !all.is_empty()) {
        let to_do = "use etcd, or take the locks away";
        found.push(Finding::error("locks", NO_LOCKS, to_do));
    }
    if let Err(e) = settings.reactions() {
        let todo = "until then nothing is taken here, and the service does not start";
        found.push(Finding::error("rules", e.0, todo));
    }
    found
}

/// Finding about the program `again`: whether it can be started.
fn helper(settings: &Settings) -> Finding {
    let path = settings.helper.display();
    let asked = Command::new(&settings.helper)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let todo = "install the program again, or have helper name it";
    match asked {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout);
            Finding::ok("again", format!("{path}: {}", version.trim()))
        }
        Ok(output) => Finding::error(
            "again",
            format!("{path} ended with {}", output.status),
            todo,
        ),
        Err(e) => Finding::error("again", format!("{path} cannot be started: {e}"), todo),
    }
}

/// Finding about `run_cmd`, if its directory or its manifest does not exist or cannot be used.
fn run_cmd(settings: &Settings) -> Option<Finding> {
    let finding = |kind, what: String, todo| {
        Some(match kind {
            ErrorKind::PermissionDenied => Finding::warning("run_cmd", what, "check as root"),
            _ => Finding::error("run_cmd", what, todo),
        })
    };
    if let Err((kind, what)) = settings.check_cwd() {
        return finding(kind, what, "create it, or set cwd to another directory");
    }
    let words = settings.run_cmd.iter().map(|word| word.as_bytes().to_vec());
    let words: Vec<_> = words.collect();
    let before = prefix::of(&words);
    let line = parse(&words[before.length..])?;
    let manifest = before.directory_from(&settings.cwd);
    let manifest = manifest.join(os(line.manifest()?));
    let kind = fs::metadata(&manifest).err()?.kind();
    let shown = manifest.display();
    let (why, todo) = match kind {
        ErrorKind::NotFound => (
            "is not there".to_owned(),
            "use an absolute path, or set cwd to the manifest's directory",
        ),
        kind => (format!("cannot be used: {kind}"), "see its path"),
    };
    finding(
        kind,
        format!("{shown}, the manifest of run_cmd, {why}"),
        todo,
    )
}

/// Finding about the setting `trust` and its consequences.
fn trust(settings: &Settings) -> Finding {
    let runs: Vec<_> = settings
        .run_cmd
        .iter()
        .map(|word| again_base::layout::quoted(&word.to_string_lossy()))
        .collect();
    let runs = runs.join(" ");
    match (settings.trust, settings.tls) {
        (Trust::Backend, _) => Finding::warning(
            "trust",
            format!(
                "trust = \"backend\": nothing is signed; whoever can write to the backend can have this node run '{runs}', in anybody's name"
            ),
            "set trust = \"puppet\" once the nodes have certificates; without a Puppet server 'again-fleet ca' makes them",
        ),
        (Trust::Puppet, true) => Finding::ok(
            "trust",
            "every trigger is verified by its sender's Puppet certificate, whoever holds the backend",
        ),
        (Trust::Puppet, false) => Finding::warning(
            "trust",
            "every trigger is verified by its sender's Puppet certificate, but tls = false: whoever is on the way to the backend can read and drop them",
            "set tls = true",
        ),
    }
}

/// State of the service, according to the service.
fn ask(settings: &Settings) -> Result<How, String> {
    let until = Instant::now() + PATIENCE;
    let begun = Conversation::begin(&socket(settings), &Question::HowAreYou, until);
    let mut conversation = begun.map_err(|e| e.to_string())?;
    let heard = conversation.next(until).map_err(|e| e.to_string())?;
    let problem = |what: &str| Err(conversation.problem(what).to_string());
    match heard {
        Heard::Answer(Answer::How(how)) => Ok(*how),
        Heard::Answer(_) => problem("answered something else than was asked"),
        Heard::Silence => problem(&format!("has not answered within {} s", PATIENCE.as_secs())),
        Heard::End => problem("ended before it had answered"),
    }
}

/// Finding about the executor: whether a process listens at its socket. A request would start the
/// executor.
fn take_socket(settings: &Settings) -> Finding {
    let path = settings.run_dir.join("executor");
    let shown = path.display();
    let todo = "'systemctl start again-fleet-executor.socket' has systemd listen there";
    match fs::read_to_string("/proc/net/unix") {
        Ok(text) if listens(&text, &path.to_string_lossy()) => {
            Finding::ok("executor", format!("somebody listens at {shown}"))
        }
        Ok(_) => Finding::error(
            "executor",
            format!("nobody listens at {shown}: nothing can be taken here"),
            todo,
        ),
        Err(e) => Finding::warning(
            "executor",
            format!("it cannot be told whether somebody listens at {shown}: {e}"),
            todo,
        ),
    }
}

/// Whether a socket of this path listens according to /proc/net/unix: whether it has the flag
/// `__SO_ACCEPTCON` (proc_net(5)).
fn listens(text: &str, path: &str) -> bool {
    let is = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let flags = words
            .nth(3)
            .and_then(|flags| u32::from_str_radix(flags, 16).ok());
        let is_listening = flags.is_some_and(|flags| flags & 0x1_0000 != 0);
        // A path may have spaces, and extends to the end of the line.
        is_listening
            && line
                .split_once(" /")
                .is_some_and(|(_, rest)| format!("/{rest}") == path)
    };
    text.lines().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::replay::Record;
    use crate::policy::term::tests::moment;
    use crate::wire::outcome::Outcome;
    use crate::wire::trigger::Trigger;
    use crate::wire::trigger::tests::trigger;

    #[test]
    fn ledger_near_a_bound_is_a_warning() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(page::FILE);
        std::fs::create_dir(path.parent().expect("a directory")).expect("made");
        let now = moment("a", 0, trigger().number);
        assert!(ledger(dir.path(), &now).is_empty());
        let mut page = Page::default();
        for n in 0..800 {
            let name = n.to_string().parse().expect("a name");
            let one = Trigger { name, ..trigger() };
            let skew = again_base::model::Span::from_secs(300);
            page.replays
                .record(&Record::new(&one, Outcome::Held, "", skew, &now));
        }
        std::fs::write(&path, page::line(&page)).expect("written");
        let found = ledger(dir.path(), &now);
        assert_eq!((found.len(), found[0].grade), (1, Grade::Warning));
        assert!(found[0].what.starts_with("800 triggers of web1"));
    }

    #[test]
    fn only_who_listens_counts() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1 /run/again-fleet/executor\n\
            0000000000000000: 00000002 00000000 00000000 0001 03 2 /run/again-fleet/trigger\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 3 /run/a b/executor
\
            0000000000000000: 00000002 00000000 00010000 0001 01 4\n";
        assert!(listens(text, "/run/again-fleet/executor"));
        assert!(listens(text, "/run/a b/executor"));
        for other in [
            "/run/again-fleet/trigger",
            "/run/again-fleet",
            "executor",
            "",
        ] {
            assert!(!listens(text, other), "{other}");
        }
        let path = tempfile::tempdir().expect("a directory").path().join("s");
        let read = || std::fs::read_to_string("/proc/net/unix").expect("proc");
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        assert!(listens(&read(), &path.to_string_lossy()));
        drop(listener);
        assert!(!listens(&read(), &path.to_string_lossy()));
        std::fs::remove_dir_all(path.parent().expect("a directory")).expect("removed");
    }

    #[test]
    fn check_looks_for_a_superuser_only_where_etcd_takes_users_from_certificates() {
        let root = tempfile::tempdir().expect("a directory");
        let ca = root.path().join("var/lib/puppet/ssl/ca");
        fs::create_dir_all(&ca).expect("made");
        let line = "0x0004 2026-01-01T00:00:00UTC 2031-01-01T00:00:00UTC /CN=root\n";
        fs::write(ca.join("inventory.txt"), line).expect("written");
        let finds = |backend: &str, tls: &str| {
            let variables = [("CERTNAME", "web1"), ("BACKEND", backend), ("TLS", tls)];
            let variables =
                variables.map(|(name, value)| (format!("AGAIN_FLEET_{name}").into(), value.into()));
            let around = Surroundings {
                environment: variables.to_vec(),
                root: root.path().to_owned(),
                program: "/nonexistent/again-fleet".into(),
            };
            let settings = settings::settings(&Flags::default(), &around).expect("settings");
            let now = Walltime::from_millis(1_795_219_387_045);
            superuser(&settings, root.path(), now).is_some()
        };
        assert!(finds("etcd", "true"));
        assert!(!finds("etcd", "false"));
        assert!(!finds("nats", "true"));
    }
}
