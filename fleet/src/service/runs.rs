//! Times at which the executor is asked about accepted triggers: soon after a change, when a
//! process that works for them has ended, and otherwise less and less often. This module reads no
//! clock.

use again_base::model::{Boottime, Span};

/// Time between a change and the next request; and between requests if the ends of processes are
/// not seen.
const FIRST: Span = Span::from_secs(2);
/// Longest pause between two requests.
const LONGEST: Span = Span::from_secs(60);
/// Shortest time between an answer and the next request.
const LEAST: Span = Span::from_secs(1);
/// Largest number of triggers in one round of requests.
pub const MOST: usize = 128;

/// Time of the next request, and the pauses between requests.
#[derive(Debug, Default)]
pub struct Runs {
    due: Option<Boottime>,
    pause: Span,
    is_asked: bool,
    answered: Option<Boottime>,
    /// Whether a process whose end is not seen works for a trigger.
    pub is_unwatched: bool,
}

impl Runs {
    /// Schedules a request soon after a trigger was accepted or has changed. An earlier time is
    /// kept: otherwise constant changes would postpone the request for ever.
    pub fn soon(&mut self, now: Boottime) {
        self.pause = FIRST;
        self.be_due(now + FIRST);
    }

    /// Schedules a request after a process that works for a trigger has ended. If its end is not on
    /// record yet, the next request follows soon, too.
    pub fn ended(&mut self, now: Boottime) {
        self.pause = Span::ZERO;
        self.be_due(self.after_answer(now));
    }

    fn be_due(&mut self, at: Boottime) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn after_answer(&self, at: Boottime) -> Boottime {
        self.answered
            .map_or(at, |answered| at.max(answered + LEAST))
    }

    /// Time of the next request; none while one is open.
    pub fn due(&self) -> Option<Boottime> {
        self.due.filter(|_| !self.is_asked)
    }

    /// Whether a request is due now.
    pub fn is_due(&self, now: Boottime) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Records that a request was sent, or that there was nothing to ask about.
    pub fn ask(&mut self, is_asked: bool) {
        self.is_asked = is_asked;
        self.due = None;
    }

    /// Records an answer, and whether it had anything new.
    pub fn answered(&mut self, is_news: bool, now: Boottime) {
        self.is_asked = false;
        self.answered = Some(now);
        if is_news {
            self.soon(now);
        }
        // The answer may not include what has happened since the request.
        if let Some(due) = self.due {
            self.due = Some(self.after_answer(due));
            return;
        }
        self.pause = if self.is_unwatched {
            FIRST
        } else {
            self.pause.times(2).max(FIRST).min(LONGEST)
        };
        self.due = Some(now + self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Boottime {
        Boottime::from_nanos(0) + Span::from_secs(seconds)
    }

    #[test]
    fn questions_come_less_and_less_often_until_something_happens() {
        let mut runs = Runs::default();
        assert_eq!(runs.due(), None);
        runs.soon(at(10));
        let mut asked = Vec::new();
        let mut now = 10;
        while now < 200 {
            if runs.is_due(at(now)) {
                asked.push(now);
                runs.ask(true);
                assert_eq!(runs.due(), None);
                runs.answered(false, at(now));
            }
            now += 1;
        }
        assert_eq!(asked, [12, 16, 24, 40, 72, 132, 192]);
        runs.answered(true, at(200));
        assert_eq!(runs.due(), Some(at(202)));
        // What is taken while a question is under way is asked for soon after its answer.
        runs.ask(true);
        runs.soon(at(203));
        assert_eq!(runs.due(), None);
        runs.answered(false, at(210));
        assert_eq!(runs.due(), Some(at(211)));
        runs.ask(false);
        assert_eq!(runs.due(), None);
    }

    #[test]
    fn question_comes_when_a_process_has_ended_but_not_all_the_time() {
        let mut runs = Runs::default();
        runs.soon(at(10));
        for now in [12, 16, 24, 40] {
            assert!(runs.is_due(at(now)));
            runs.ask(true);
            runs.answered(false, at(now));
        }
        runs.ended(at(50));
        assert!(runs.is_due(at(50)));
        runs.ask(true);
        // The record does not have its end yet.
        runs.answered(false, at(50));
        assert_eq!(runs.due(), Some(at(52)));
        runs.ended(at(50));
        assert_eq!(runs.due(), Some(at(51)));
        // Another one ends while a question is under way.
        runs.ask(true);
        runs.ended(at(52));
        assert_eq!(runs.due(), None);
        runs.answered(true, at(53));
        assert_eq!(runs.due(), Some(at(54)));
    }

    #[test]
    fn questions_come_every_two_seconds_where_ends_are_not_seen() {
        let mut runs = Runs::default();
        runs.soon(at(10));
        runs.is_unwatched = true;
        for now in (12..100).step_by(2) {
            assert_eq!(runs.due(), Some(at(now)));
            runs.ask(true);
            runs.answered(false, at(now));
        }
    }

    #[test]
    fn a_question_comes_while_something_happens_all_the_time() {
        let mut runs = Runs::default();
        let mut asked = Vec::new();
        for now in 10..20 {
            runs.soon(at(now));
            if runs.is_due(at(now)) {
                asked.push(now);
                runs.ask(true);
                runs.answered(true, at(now));
            }
        }
        assert_eq!(asked, [12, 14, 16, 18]);
    }
}
