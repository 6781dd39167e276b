//! Requests that commands have left on disk are sent in the same way as those from the socket.

use sd_notify::NotifyState;
use tokio::sync::mpsc::unbounded_channel;
use tracing::{info, warn};

use again_base::sys::clock;

use super::{Driver, Note};
use crate::ask::{Answer, Question, Summary};
use crate::policy::fire::Request;
use crate::step::model::SelectionState;

impl Driver {
    /// Sends the requests that wait on disk, and marks those that are done for removal by the
    /// executor. A request that the disk cannot store keeps waiting, with those behind it.
    pub fn send_requests(&mut self) {
        let mut dropped = Vec::new();
        for id in self.requests.waiting() {
            // Each request is written to the disk, which takes time.
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
            match self.requests.read(&id, clock::walltime()) {
                Ok(Some(request)) => {
                    if self.keeps_nothing() || !self.send_request(request) {
                        break;
                    }
                }
                Ok(None) => continue,
                Err(why) => dropped.push(format!("{id}: {why}")),
            }
            self.requests.done.insert(id);
        }
        if let Some(first) = dropped.first() {
            let count = dropped.len();
            warn!("{count} of the requests that waited on disk are dropped: {first}");
        }
        self.publisher
            .told
            .extend(self.requests.done.iter().cloned());
    }

    /// Whether the last write to disk failed and another one fails now: a request would be logged
    /// again for each of its targets.
    fn keeps_nothing(&mut self) -> bool {
        let numbers = self.state.numbers();
        self.health.not_kept.is_some() && self.keep.put_numbers(numbers).is_err()
    }

    /// Sends a request of a command that has ended, and logs its failures. Returns whether the disk
    /// has stored it, or it was refused.
    fn send_request(&mut self, request: Request) -> bool {
        let id = request.id.clone();
        info!("sending request {id}, which waited on disk");
        let (tell, mut answers) = unbounded_channel();
        let client = self.callers.enter(tell);
        let notes = self.ways.notes.clone();
        tokio::spawn(async move {
            while let Some(answer) = answers.recv().await {
                let what = match answer {
                    Answer::Failed(node, why) => format!("not sent to {node}: {why}"),
                    Answer::Refused(why) => format!("refused: {why}"),
                    Answer::LeftOut(way) => format!("not passed on: {way}"),
                    Answer::Said(Summary {
                        selection: Some(SelectionState::NotStored(why)),
                        ..
                    }) => format!("not stored: {why}"),
                    Answer::End => break,
                    _ => continue,
                };
                warn!("request {id}, which waited on disk, is {what}");
            }
            let _ = notes.send(Note::Left(client));
        });
        self.is_kept = true;
        let wait = false;
        self.asked(client, Question::Fire { request, wait });
        self.is_kept
    }
}
