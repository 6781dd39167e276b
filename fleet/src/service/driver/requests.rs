//! Requests that commands have left on disk are sent as if the socket had brought them.

use sd_notify::NotifyState;
use tokio::sync::mpsc::unbounded_channel;
use tracing::{error, info, warn};

use again_base::sys::clock;

use super::{Driver, Note};
use crate::ask::{Answer, Question};
use crate::handover::MOST_TOGETHER;
use crate::policy::fire::Request;
use crate::service::requests::Found;
use crate::service::root;
use crate::step::model::SelectionState;

impl Driver {
    /// Sends what waits, and asks the executor to remove its files: at each beat, and whenever there are new ones. While the disk
    /// cannot keep one, it and those behind it wait on.
    pub fn send_requests(&mut self, is_beat: bool) {
        let (mut is_new, mut dropped) = (false, Vec::new());
        for id in self.requests.waiting() {
            // Each is written to the disk.
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
            match self.requests.read(&id, clock::walltime()) {
                Found::Send(request) => {
                    if !self.send_request(request) {
                        break;
                    }
                }
                Found::Drop(why) => dropped.push(format!("{id}: {why}")),
                Found::Nothing => continue,
            }
            self.requests.finish(id);
            is_new = true;
        }
        if let Some(first) = dropped.first() {
            let count = dropped.len();
            warn!("{count} of the requests that waited on disk are dropped: {first}");
        }
        if is_new || is_beat {
            self.remove_requests();
        }
    }

    /// Sends a request of a command that has ended, and logs what fails. Whether the disk keeps it, or it was refused.
    fn send_request(&mut self, request: Request) -> bool {
        let id = request.id.clone();
        info!("sending request {id}, which waited on disk");
        let (tell, mut answers) = unbounded_channel();
        let client = self.callers.enter(tell);
        let notes = self.ways.notes.clone();
        tokio::spawn(async move {
            while let Some(answer) = answers.recv().await {
                match answer {
                    Answer::Failed(node, why) => error!("{id} is not sent to {node}: {why}"),
                    Answer::Refused(why) => error!("{id} is refused: {why}"),
                    Answer::LeftOut(way) => warn!("{id} is not passed on: {way}"),
                    Answer::Said(summary) => {
                        if let Some(SelectionState::NotStored(why)) = summary.selection {
                            error!("the selection of {id} is not stored: {why}");
                        }
                    }
                    Answer::End => break,
                    _ => {}
                }
            }
            let _ = notes.send(Note::Left(client));
        });
        self.is_kept = true;
        let wait = false;
        self.asked(client, Question::Fire { request, wait });
        self.is_kept
    }

    fn remove_requests(&self) {
        let ids = self.requests.done();
        if ids.is_empty() {
            return;
        }
        let socket = self.ways.take.clone();
        tokio::spawn(async move {
            for ids in ids.chunks(MOST_TOGETHER) {
                // What is not removed is tried again at the next beat.
                let _ = root::mark(&socket, ids).await;
            }
        });
    }
}
