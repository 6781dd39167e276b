//! Processes of one scan of the machine, and the activity of a run among them.

use std::collections::{BTreeMap, BTreeSet};

use super::time::Span;

/// Process as a scan found it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Pid of the process.
    pub pid: i32,
    /// Pid of the parent; 0 for none.
    pub parent: i32,
    /// Words of the command line, without the empty ones, separated by spaces. Its user chose them.
    /// Truncated.
    pub command: String,
    /// Time since the start of the process.
    pub age: Span,
    /// CPU time of the process, without its children.
    pub cpu: Span,
    /// Resident memory in bytes. Shared pages count for each process.
    pub memory: u64,
}

/// Processes of one scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree(Vec<Process>);

/// Activity of the processes of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// Number of processes, including the run's own.
    pub processes: usize,
    /// CPU time of these processes.
    pub cpu: Span,
    /// Resident memory of these processes in bytes.
    pub memory: u64,
    /// Process furthest below the run's own, if there is one; the oldest if several are.
    pub deepest: Option<Process>,
}

impl Tree {
    /// Tree of these processes.
    pub fn new(processes: Vec<Process>) -> Self {
        Tree(processes)
    }

    /// Process `root` and all below it, each before its children and with its depth. Empty if
    /// `root` does not exist.
    pub fn below(&self, root: i32) -> Vec<(usize, &Process)> {
        let mut found = Vec::new();
        // A pid that was reused during the scan could form a loop.
        let mut known = BTreeSet::from([root]);
        let mut children = BTreeMap::<i32, Vec<&Process>>::new();
        for one in self.0.iter().rev() {
            children.entry(one.parent).or_default().push(one);
        }
        let mut next: Vec<_> = self.0.iter().filter(|one| one.pid == root).collect();
        next.truncate(1);
        let mut next: Vec<(usize, &Process)> = next.into_iter().map(|one| (0, one)).collect();
        while let Some((depth, process)) = next.pop() {
            found.push((depth, process));
            let children = children.remove(&process.pid).into_iter().flatten();
            let new = children.filter(|one| known.insert(one.pid));
            next.extend(new.map(|one| (depth + 1, one)));
        }
        found
    }

    /// Activity of the run whose process is `root`; `None` if it does not exist.
    pub fn activity(&self, root: i32) -> Option<Activity> {
        let all = self.below(root);
        let rank = |(depth, process): &&(usize, &Process)| (*depth, process.age);
        let deepest = all.iter().filter(|(depth, _)| *depth > 0).max_by_key(rank);
        let cpu = all.iter().map(|(_, one)| one.cpu.nanos());
        let memory = all.iter().map(|(_, one)| one.memory);
        (!all.is_empty()).then(|| Activity {
            processes: all.len(),
            cpu: Span::from_nanos(cpu.fold(0, u64::saturating_add)),
            memory: memory.fold(0, u64::saturating_add),
            deepest: deepest.map(|(_, process)| (*process).clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(pid: i32, parent: i32, age: u64) -> Process {
        Process {
            pid,
            parent,
            command: format!("word {pid}"),
            age: Span::from_secs(age),
            cpu: Span::from_secs(1),
            memory: 10,
        }
    }

    #[test]
    fn activity_is_that_of_the_run_and_names_its_deepest_process() {
        let tree = Tree::new(vec![
            process(1, 0, 900),
            process(7, 5, 30),
            process(5, 1, 60),
            process(8, 5, 20),
            process(9, 8, 10),
            // Another run's, which is deeper.
            process(20, 1, 80),
            process(21, 20, 80),
            process(22, 21, 80),
            process(23, 22, 80),
        ]);
        let pids: Vec<_> = tree.below(5).iter().map(|(d, p)| (*d, p.pid)).collect();
        assert_eq!(pids, [(0, 5), (1, 7), (1, 8), (2, 9)]);
        let activity = tree.activity(5).expect("it is there");
        assert_eq!((activity.processes, activity.memory), (4, 40));
        assert_eq!(activity.cpu, Span::from_secs(4));
        assert_eq!(activity.deepest, Some(process(9, 8, 10)));
        assert_eq!(tree.activity(9).expect("it is there").deepest, None);
        assert_eq!(tree.activity(4), None);
    }

    #[test]
    fn oldest_of_equally_deep_processes_is_the_deepest() {
        let tree = Tree::new(vec![
            process(5, 1, 60),
            process(7, 5, 30),
            process(8, 5, 40),
        ]);
        let deepest = tree.activity(5).and_then(|activity| activity.deepest);
        assert_eq!(deepest.map(|process| process.pid), Some(8));
    }

    proptest! {
        #[test]
        fn no_process_is_found_twice(parents in proptest::collection::vec((0..9, 0..9), 0..20), root in 0..9) {
            let processes = parents.iter().map(|(pid, parent)| process(*pid, *parent, 1));
            let tree = Tree::new(processes.collect());
            let below = tree.below(root);
            let pids: BTreeSet<i32> = below.iter().map(|(_, process)| process.pid).collect();
            prop_assert_eq!(pids.len(), below.len());
            prop_assert_eq!(tree.activity(root).is_some(), parents.iter().any(|(pid, _)| *pid == root));
        }
    }
}
