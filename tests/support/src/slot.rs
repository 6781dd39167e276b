//! A stand-in for `again-fleet slot`, beside `again`.

use std::fs;

use super::process::Process;
use super::scratch::Scratch;
use super::{SHORT, wait_for, wait_until, write_program};

/// What it says.
pub const WAITS: &str = "waits for a slot of group 'g', which has 3: 2 before it: n1, n2";

impl Scratch {
    /// Puts it there: it notes who asks and what it sees, says what is waited for, and ends with the status that it is told,
    /// after the words that go with that.
    pub fn install_slots(&self) {
        let root = self.root();
        let made = self.run("mkfifo", &[&self.at("answer")]);
        assert_eq!(made.code, Some(0), "{made:?}");
        write_program(
            self.path("bin/again-fleet"),
            &format!(
                "#!/bin/sh\n[ \"$*\" = slot ] || exit 2\n\
                 cat /proc/$$/environ > {root}/environ\nls -l /proc/$$/fd > {root}/fds\n\
                 echo \"again-fleet: the run {WAITS}\"\necho \"$PPID $$\" >> {root}/asked\n\
                 read -r status words < {root}/answer\n[ -z \"$words\" ] || echo \"again-fleet: $words\" >&2\nexit \"$status\"\n"
            ),
        );
    }

    /// Who has asked for a slot so far, and by which process.
    pub fn asked_for_slots(&self) -> Vec<(i32, i32)> {
        let text = self.text("asked");
        let number = |word: &str| word.parse().expect("a pid");
        let pids = |line: &str| line.split_once(' ').map(|(a, b)| (number(a), number(b)));
        text.lines().filter_map(pids).collect()
    }

    /// The process that waits for the `count`th slot that was asked for.
    #[track_caller]
    pub fn question(&self, count: usize) -> Process {
        wait_until("the question", SHORT, || {
            self.asked_for_slots().len() >= count
        });
        let all = self.asked_for_slots();
        assert_eq!(all.len(), count, "asked too often");
        Process::now(all[count - 1].1).expect("it waits")
    }

    /// Tells it how to end, and with which words.
    pub fn answer_slot(&self, status: &str) {
        fs::write(self.path("answer"), format!("{status}\n")).expect("told");
    }

    /// The timer `again`, once it waits for a slot in words that begin so.
    #[track_caller]
    pub fn blocked_by_slot(&self, words: &str) -> serde_json::Value {
        wait_for(words, SHORT, || {
            let timer = self.timer("again")?;
            let by = &timer["blocked_by"];
            let is_it = by["what"] == "slot" && by["reason"].as_str()?.starts_with(words);
            is_it.then_some(timer)
        })
    }
}
