//! The activity of the processes of runs, for people: one scan of the machine with sysinfo. The
//! identity and liveness of a process come from [`again_base::sys::process`].
#![forbid(unsafe_code)]

use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};

use again_base::model::{Identity, Process, Span, Tree};
use again_base::sys::clock::boottime;
use again_base::sys::machine::replacement;
use again_base::sys::process::{identify, is_alive};

/// Maximum number of characters of a command line that are kept. Its user chose them.
const COMMAND: usize = 160;

/// Tree of these processes and all below them, except this one. The tree lacks those that do not
/// exist or that the caller may not see (proc(5), hidepid).
pub fn scan(roots: &[Identity]) -> Tree {
    if roots.is_empty() || replacement().is_some() {
        return Tree::default();
    }
    // Otherwise sysinfo keeps a file open for each process.
    sysinfo::set_open_files_limit(0);
    let mut system = System::new();
    let parents = ProcessRefreshKind::nothing().without_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::All, false, parents);
    let all = Tree::new(
        system
            .processes()
            .values()
            .map(|one| process(one, Span::ZERO))
            .collect(),
    );
    let alive = roots.iter().filter(|root| is_alive(**root));
    let below = alive.flat_map(|root| all.below(root.pid));
    let this = Pid::from_u32(std::process::id());
    let pids = below.filter_map(|(_, one)| usize::try_from(one.pid).ok());
    let mut pids: Vec<Pid> = pids.map(Pid::from).filter(|pid| *pid != this).collect();
    pids.sort_unstable();
    pids.dedup();
    // Command lines can be long, and any user's: only those of these processes are read.
    let work = parents.with_cmd(UpdateKind::Always);
    let work = work.with_memory().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), false, work);
    let found = pids.iter().filter_map(|pid| system.process(*pid));
    let living = found.filter(|one| one.status() != ProcessStatus::Zombie);
    // sysinfo uses /proc/uptime, which may count from the start of a container.
    let aged = living.filter_map(|one| {
        let who = identify(i32::try_from(one.pid().as_u32()).ok()?).ok()?;
        Some(process(one, boottime().since(who.started())))
    });
    Tree::new(aged.collect())
}

fn process(seen: &sysinfo::Process, age: Span) -> Process {
    let pid = |pid: Pid| i32::try_from(pid.as_u32()).unwrap_or(0);
    let words = seen.cmd().iter().map(|word| word.to_string_lossy());
    let mut command = words.collect::<Vec<_>>().join(" ");
    if command.is_empty() {
        command = seen.name().to_string_lossy().into_owned();
    }
    let millis = seen.accumulated_cpu_time();
    Process {
        pid: pid(seen.pid()),
        parent: seen.parent().map_or(0, pid),
        command: command.chars().take(COMMAND).collect(),
        age,
        cpu: Span::from_nanos(millis.saturating_mul(1_000_000)),
        memory: seen.memory(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use again_base::sys::process::own_identity;
    use std::process::Command;

    #[test]
    fn scan_finds_a_child_with_its_words_and_not_the_caller() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 600; :"])
            .spawn()
            .expect("sh");
        let who = identify(i32::try_from(child.id()).expect("a pid")).expect("alive");
        // sh has yet to start it.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let (activity, least) = loop {
            let least = boottime().since(who.started());
            let activity = scan(&[who]).activity(who.pid).expect("it lives");
            let command = activity.deepest.as_ref().map(|one| one.command.as_str());
            if command == Some("sleep 600") || std::time::Instant::now() > deadline {
                break (activity, least);
            }
        };
        let deepest = activity.deepest.clone().expect("a child");
        assert_eq!(
            (deepest.command.as_str(), deepest.parent),
            ("sleep 600", who.pid)
        );
        assert_eq!(activity.processes, 2);
        assert!(activity.memory > 4096, "{activity:?}");
        let tree = scan(&[who]);
        let age = tree.below(who.pid)[0].1.age;
        assert!(
            least <= age && age <= boottime().since(who.started()),
            "{age:?}"
        );
        let own = own_identity().expect("/proc");
        assert_eq!(scan(&[own]).activity(own.pid), None);
        let another = Identity {
            start: who.start + 1,
            ..who
        };
        assert_eq!(scan(&[another]), Tree::default());
        for pid in [deepest.pid, who.pid] {
            let pid = nix::unistd::Pid::from_raw(pid);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("killed");
        }
        child.wait().expect("reaped");
    }
}
