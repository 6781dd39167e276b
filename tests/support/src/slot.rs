//! Script instead of `again-fleet slot`, beside `again`.

use std::fs;

use super::process::Process;
use super::scratch::Scratch;
use super::{SHORT, wait_for, wait_until, write_program};

/// Message of the script while it waits.
pub const WAITS: &str = "waits for a slot of group 'g', which has 3: 2 before it: n1, n2";

impl Scratch {
    /// Installs the script: it records its caller and its environment, prints what it waits for,
    /// and ends with the status that [`Scratch::answer_slot`] sets, after printing the words that
    /// follow it.
    pub fn install_slots(&self) {
        let root = self.root();
        let waits = serde_json::json!({ "waits": WAITS });
        let made = self.run("mkfifo", &[&self.at("answer")]);
        assert_eq!(made.code, Some(0), "{made:?}");
        write_program(
            self.path("bin/again-fleet"),
            &format!(
                "#!/bin/sh\n[ \"$*\" = 'slot --json' ] || exit 2\n\
                 cat /proc/$$/environ > {root}/environ\nls -l /proc/$$/fd > {root}/fds\n\
                 cat <<'END'\n{waits}\nEND\necho \"$PPID $$\" >> {root}/asked\n\
                 read -r status words < {root}/answer\n[ -z \"$words\" ] || echo \"{{\\\"refused\\\": \\\"$words\\\"}}\"\nexit \"$status\"\n"
            ),
        );
    }

    /// Returns the pids of caller and process of each request for a slot so far.
    pub fn asked_for_slots(&self) -> Vec<(i32, i32)> {
        let text = self.text("asked");
        let number = |word: &str| word.parse().expect("a pid");
        let pids = |line: &str| line.split_once(' ').map(|(a, b)| (number(a), number(b)));
        text.lines().filter_map(pids).collect()
    }

    /// Returns the process of the `count`th request for a slot.
    #[track_caller]
    pub fn question(&self, count: usize) -> Process {
        wait_until("the question", SHORT, || {
            self.asked_for_slots().len() >= count
        });
        let all = self.asked_for_slots();
        assert_eq!(all.len(), count, "asked too often");
        Process::now(all[count - 1].1).expect("it waits")
    }

    /// Sets the exit status of the script, and the words that it prints.
    pub fn answer_slot(&self, status: &str) {
        fs::write(self.path("answer"), format!("{status}\n")).expect("told");
    }

    /// Waits until the timer `again` waits for a slot with a reason that begins with `words`;
    /// returns the timer.
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
