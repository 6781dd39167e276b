//! Events of runs are signed, and sent to the backend.

use std::io;
use std::time::Duration;
use tracing::{error, warn};

use again_base::sys::clock;

use super::{Driver, Note, Reply, then};
use crate::backend::Error;
use crate::service::executor;
use crate::service::failures::Work;
use crate::service::link::Call;
use crate::service::publisher::Sent;
use crate::wire::envelope::Draft;
use crate::wire::key::Key;

/// Time that an event stays in the backend.
const SEEN: Duration = Duration::from_secs(3600);

impl Driver {
    /// Publishes events of runs, if the backend is reached and they are due, and asks the executor
    /// to mark the files of published events.
    pub fn tell_events(&mut self) {
        self.send_events();
        let runs = self.publisher.marks(clock::boottime());
        if runs.is_empty() {
            return;
        }
        let (socket, notes) = (self.ways.executor.clone(), self.ways.notes.clone());
        tokio::spawn(async move {
            let _ = notes.send(Note::Marked(executor::mark(&socket, &runs).await));
        });
    }

    /// Handles the executor's answer, or that it did not answer: it is asked again later.
    pub fn marked(&mut self, marked: io::Result<()>) {
        let why = marked
            .err()
            .map(|e| format!("cannot remove files of published events and sent requests: {e}"));
        if let Some(why) = self.publisher.marked(why, clock::boottime()) {
            warn!("{why}");
        }
    }

    fn send_events(&mut self) {
        while self.health.is_up {
            match self.publisher.next(clock::boottime()) {
                Ok(None) => return,
                Ok(Some(sent)) => match self.event_batch(&sent) {
                    Ok(call) => return self.order(call),
                    // No node could ever read the batch.
                    Err(why) => {
                        if let Some(why) = why {
                            error!("events are dropped: {why}");
                        }
                        self.event_batch_done(false);
                    }
                },
                Err(why) => return warn!("{why}"),
            }
        }
    }

    /// Call that puts a batch of events.
    ///
    /// # Errors
    /// The batch cannot be written, or is empty.
    fn event_batch(&self, sent: &Sent) -> Result<Call<Reply>, Option<String>> {
        let batch = sent
            .event_batch
            .batch(&self.me, &sent.file.run, &sent.begun);
        let batch = batch.ok_or(None)?;
        let key = Key::Event {
            node: batch.node.clone(),
            run: batch.run.clone(),
            first: batch.first(),
        };
        let draft = Draft::new(&self.namespace, &batch);
        let sealed = draft.and_then(|draft| self.seals.seal(&[draft]));
        let mut sealed = sealed.map_err(|e| Some(e.to_string()))?;
        let bytes = sealed.pop().ok_or(None)?;
        Ok(Call::Put {
            key,
            bytes,
            ttl: Some(SEEN),
            needs_room: true,
            then: then(Driver::events_told),
        })
    }

    fn event_batch_done(&mut self, is_told: bool) {
        if let Err(why) = self.publisher.done(is_told, clock::boottime()) {
            warn!("{why}");
        }
    }

    /// Handles the backend's answer to the put of a batch.
    fn events_told(&mut self, answer: Result<u64, Error>) {
        match answer {
            Ok(_) => {
                self.health.failures.succeeded(&Work::Events);
                self.event_batch_done(true);
                self.tell_events();
            }
            Err(e @ Error::TooLarge) => {
                self.health.failures.succeeded(&Work::Events);
                error!("events are dropped: the backend {e}");
                self.event_batch_done(false);
            }
            Err(e) => {
                let what = format!("events wait: the backend {e}");
                let now = clock::boottime();
                self.health.failures.refused(Work::Events, &e, &what, now);
                if let Some(why) = self.publisher.failed(e.to_string(), clock::boottime()) {
                    warn!("events wait: the backend {why}");
                }
            }
        }
    }

    /// Continues to publish events after the backend is reached again.
    pub fn events_go_on(&mut self) {
        self.publisher.reached(clock::boottime());
        self.tell_events();
    }
}
