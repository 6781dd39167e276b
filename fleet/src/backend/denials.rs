//! Calls that a NATS server forbids. The server reports a refusal separately from the call, which
//! only gets no answer; the subject in the report identifies the call.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Error;

/// Recent refusals of the server.
#[derive(Clone)]
pub struct Denials(watch::Receiver<Vec<Denial>>);

/// Records the refusals of the server.
pub struct Notes {
    denials: watch::Sender<Vec<Denial>>,
    /// Longest wait of a call.
    patience: Duration,
}

struct Denial {
    subject: String,
    at: Instant,
    words: String,
}

impl Denials {
    /// An empty list of refusals and its writer. No call waits longer than `patience`.
    pub fn new(patience: Duration) -> (Notes, Denials) {
        let (denials, told) = watch::channel(Vec::new());
        (Notes { denials, patience }, Denials(told))
    }

    /// Waits until the server forbids a subject that was used at or after `since`. Cancel-safe.
    pub async fn of(&self, subject: &str, since: Instant) -> Error {
        let mut denials = self.0.clone();
        // The inbox for the answers to all calls ends with a star.
        let is_it = |one: &&Denial| {
            one.at >= since && (one.subject == subject || one.subject.ends_with(".*"))
        };
        loop {
            if let Some(denial) = denials.borrow_and_update().iter().find(is_it) {
                return Error::Denied(denial.words.clone());
            }
            if denials.changed().await.is_err() {
                // The client has ended; the call itself reports that.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Notes {
    /// Records a server's error if it forbids something, and drops refusals older than the longest
    /// wait.
    pub fn note(&self, words: String) {
        let Some(subject) = forbidden(&words).map(str::to_owned) else {
            return;
        };
        // A part of each inbox name is random; the same reason should have the same words each
        // time.
        let inbox = subject.strip_prefix("_INBOX_");
        let words = match inbox.and_then(|inbox| inbox.split('.').nth(1)) {
            Some(drawn) => words.replace(drawn, "*"),
            None => words,
        };
        let at = Instant::now();
        self.denials.send_modify(|all| {
            all.retain(|one| at.duration_since(one.at) < self.patience);
            all.push(Denial { subject, at, words });
        });
    }
}

/// The subject of `Permissions Violation for Publish to "SUBJECT"`, or for Subscription.
fn forbidden(words: &str) -> Option<&str> {
    let (_, rest) = words.split_once("Permissions Violation for ")?;
    rest.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(denials: &Denials, subject: &str, since: Instant) -> Option<String> {
        let mut answer = std::pin::pin!(denials.of(subject, since));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match answer.as_mut().poll(&mut context) {
            std::task::Poll::Ready(Error::Denied(words)) => Some(words),
            _ => None,
        }
    }

    #[test]
    fn each_call_is_told_what_was_forbidden_to_it() {
        let (notes, denials) = Denials::new(Duration::from_secs(60));
        let start = Instant::now();
        let one = r#"nats: Permissions Violation for Publish to "$KV.x.a=b""#;
        let other =
            r#"nats: Permissions Violation for Subscription to "_INBOX_x.drawn" using queue "q""#;
        for words in [
            one,
            other,
            "nats: Permissions Violation for Publish",
            r#"a "$KV.x.y" violation"#,
        ] {
            notes.note(words.to_owned());
        }
        assert_eq!(said(&denials, "$KV.x.a=b", start).as_deref(), Some(one));
        assert_eq!(
            said(&denials, "_INBOX_x.drawn", start),
            Some(other.replace("drawn", "*"))
        );
        assert_eq!(said(&denials, "$KV.x.y", start), None);
        // A call that began later.
        assert_eq!(said(&denials, "$KV.x.a=b", Instant::now()), None);
        // Where no answer may be heard, no call is answered.
        notes.note(r#"Permissions Violation for Subscription to "_INBOX_x.drawn.*""#.to_owned());
        assert!(said(&denials, "$KV.x.y", start).is_some());
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten() {
        let (notes, denials) = Denials::new(Duration::ZERO);
        for n in 0..3 {
            notes.note(format!(r#"Permissions Violation for Publish to "{n}""#));
        }
        assert_eq!(denials.0.borrow().len(), 1);
    }
}
