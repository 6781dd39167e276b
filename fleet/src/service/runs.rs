//! When root's side is asked what became of triggers that were taken: soon after, and then less and less often. No clock in here.

use again::model::{Boottime, Span};

/// How soon after something has happened.
const FIRST: Span = Span::from_secs(2);
/// The longest pause.
const LONGEST: Span = Span::from_secs(60);
/// How many triggers are asked for together.
pub const MOST: usize = 128;

/// When it is asked next.
#[derive(Debug, Default)]
pub struct Runs {
    due: Option<Boottime>,
    pause: Span,
    is_asked: bool,
}

impl Runs {
    /// Something was taken, or became something else: more may follow soon. What is due sooner stays so: where something is taken all the
    /// time, the question would never come else.
    pub fn soon(&mut self, now: Boottime) {
        self.pause = FIRST;
        self.due = self.due.min(Some(now + FIRST)).or(Some(now + FIRST));
    }

    /// When a question is due.
    pub fn due(&self) -> Option<Boottime> {
        self.due.filter(|_| !self.is_asked)
    }

    /// Whether a question is due now.
    pub fn is_due(&self, now: Boottime) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// It is asked, or there is nothing to ask for.
    pub fn ask(&mut self, is_asked: bool) {
        self.is_asked = is_asked;
        self.due = None;
    }

    /// It was answered, by something new or not.
    pub fn answered(&mut self, is_news: bool, now: Boottime) {
        self.is_asked = false;
        if self.due.take().is_some() || is_news {
            self.soon(now);
        } else {
            self.pause = self.pause.times(2).max(FIRST).min(LONGEST);
            self.due = Some(now + self.pause);
        }
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
        assert_eq!(runs.due(), Some(at(212)));
        runs.ask(false);
        assert_eq!(runs.due(), None);
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
