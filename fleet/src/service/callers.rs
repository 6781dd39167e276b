//! Clients of this service, and what each of them still waits for. This module uses no sockets.

use std::collections::BTreeSet;

use tokio::sync::mpsc::UnboundedSender;

use super::small_map::SmallMap;
use crate::ask::{self, Answer};
use crate::settings::Backend;
use crate::step::model::{Client, News, Said};
use crate::wire::name::{Id, Node};

/// Trigger, by its id, and a node that it is sent to.
type Way = (Id, Node);

/// Clients that are connected.
#[derive(Debug, Default)]
pub struct Callers {
    callers: SmallMap<Client, Caller>,
    /// Number of the last client.
    last: u64,
}

#[derive(Debug)]
struct Caller {
    tell: UnboundedSender<Answer>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Waits for the answer to its request.
    Asks,
    /// Waits for the result of sending or taking back triggers. Progress that arrives before the
    /// result is sent after it.
    Waits {
        follows: BTreeSet<Way>,
        early: Vec<(Way, News)>,
    },
    /// Waits for a slot, without a time limit.
    Stands,
    /// Receives the outcomes of these triggers.
    Follows(BTreeSet<Way>),
    /// Has received its last answer.
    Done,
}

impl Callers {
    /// Adds a client, whose answers are sent through this channel.
    pub fn enter(&mut self, tell: UnboundedSender<Answer>) -> Client {
        self.last += 1;
        let (client, stage) = (Client::Connection(self.last), Stage::Asks);
        self.callers.insert(client, Caller { tell, stage });
        client
    }

    /// Removes a client.
    pub fn leave(&mut self, client: Client) {
        self.callers.remove(&client);
    }

    /// Ends all connections after their answers are written. Returns how many there are.
    pub fn dismiss(&mut self) -> usize {
        std::mem::take(&mut self.callers).0.len()
    }

    /// Whether a client is connected that neither follows outcomes nor waits for a slot: the
    /// service waits for it before it ends.
    pub fn is_owed(&self) -> bool {
        let follows = |caller: &Caller| matches!(caller.stage, Stage::Follows(_) | Stage::Stands);
        !self.callers.0.iter().all(|(_, caller)| follows(caller))
    }

    /// Records that a client sends or takes back triggers, and which outcomes it follows.
    pub fn wait(&mut self, client: Client, follows: BTreeSet<Way>) {
        if let Some(caller) = self.callers.get_mut(&client) {
            let early = Vec::new();
            caller.stage = Stage::Waits { follows, early };
        }
    }

    /// Records that a client waits for a slot.
    pub fn stand(&mut self, client: Client) {
        if let Some(caller) = self.callers.get_mut(&client) {
            caller.stage = Stage::Stands;
        }
    }

    /// Sends a client its last answer.
    pub fn answer(&mut self, client: Client, answer: Answer) {
        if let Some(caller) = self.callers.get_mut(&client) {
            caller.say(answer);
            caller.end();
        }
    }

    /// Whether a client is still connected.
    pub fn is_here(&self, client: Client) -> bool {
        self.callers.get(&client).is_some()
    }

    /// Sends a client an answer that is not its last one.
    pub fn tell(&mut self, client: Client, answer: Answer) {
        if let Some(caller) = self.callers.get(&client) {
            caller.say(answer);
        }
    }

    /// Sends a client the end of its answers.
    pub fn end(&mut self, client: Client) {
        if let Some(caller) = self.callers.get_mut(&client) {
            caller.end();
        }
    }

    /// Sends a client the result of its request.
    pub fn said(&mut self, client: Client, said: &Said, backend: Backend, away: Option<&str>) {
        let Some(caller) = self.callers.get_mut(&client) else {
            return;
        };
        for answer in ask::said(said, backend, away) {
            caller.say(answer);
        }
        let stage = std::mem::replace(&mut caller.stage, Stage::Done);
        if let Stage::Waits { mut follows, early } = stage {
            let failed = |target: &Node| said.failed.iter().any(|(node, _)| node == target);
            follows.retain(|(_, target)| !failed(target));
            caller.stage = Stage::Follows(follows);
            for (way, news) in early {
                caller.news(&way, &news);
            }
        }
        caller.end_if_idle();
    }

    /// Reports what became of a trigger to every client that follows it.
    pub fn progress(&mut self, way: &Way, news: &News) {
        for (_, caller) in &mut self.callers.0 {
            match &mut caller.stage {
                Stage::Waits { follows, early } if !follows.is_empty() => {
                    early.push((way.clone(), news.clone()));
                }
                Stage::Follows(_) => {
                    caller.news(way, news);
                    caller.end_if_idle();
                }
                Stage::Waits { .. } | Stage::Asks | Stage::Stands | Stage::Done => {}
            }
        }
    }
}

impl Caller {
    fn say(&self, answer: Answer) {
        // A client that has disconnected receives nothing.
        let _ = self.tell.send(answer);
    }

    fn end(&mut self) {
        self.say(Answer::End);
        self.stage = Stage::Done;
    }

    fn end_if_idle(&mut self) {
        if let Stage::Follows(follows) = &self.stage
            && follows.is_empty()
        {
            self.end();
        }
    }

    fn news(&mut self, way: &Way, news: &News) {
        let Stage::Follows(follows) = &mut self.stage else {
            return;
        };
        if !follows.contains(way) {
            return;
        }
        match news {
            News::Status(outcome, _) if !outcome.is_final() => {}
            News::Status(..) | News::NoAnswer => {
                follows.remove(way);
            }
            News::ReplacedBy(id) => {
                follows.remove(way);
                follows.insert((id.clone(), way.1.clone()));
            }
        }
        let (id, target) = way.clone();
        self.say(Answer::Progress {
            id,
            target,
            news: news.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::wire::outcome::Outcome;

    fn node(name: &str) -> Node {
        name.parse().expect("a certname")
    }

    fn way(bits: u128, name: &str) -> Way {
        (Id::from_bits(bits), node(name))
    }

    fn told(outcome: Outcome) -> News {
        News::Status(outcome, String::new())
    }

    /// What they were told, in words.
    fn heard(answers: &mut UnboundedReceiver<Answer>) -> Vec<String> {
        let answers = std::iter::from_fn(|| answers.try_recv().ok());
        let word = |answer| match answer {
            Answer::Delivered(node) => format!("delivered {node}"),
            Answer::Failed(node, _) => format!("failed {node}"),
            Answer::Said(_) => "said".to_owned(),
            Answer::Progress { target, news, .. } => match news {
                News::Status(outcome, _) => format!("{target} {outcome}"),
                News::ReplacedBy(_) => format!("{target} replaced"),
                News::NoAnswer => format!("{target} silent"),
            },
            Answer::End => "end".to_owned(),
            other => format!("{other:?}"),
        };
        answers.map(word).collect()
    }

    fn said(delivered: &[&str], failed: &[&str]) -> Said {
        Said {
            delivered: delivered.iter().map(|name| node(name)).collect(),
            failed: failed
                .iter()
                .map(|name| (node(name), String::new()))
                .collect(),
            ..Said::default()
        }
    }

    #[test]
    fn who_does_not_wait_is_told_what_it_came_to() {
        let (mut callers, (tell, mut ear)) = (Callers::default(), unbounded_channel());
        assert!(!callers.is_owed());
        let client = callers.enter(tell);
        callers.wait(client, BTreeSet::new());
        callers.progress(&way(1, "a"), &told(Outcome::Taken));
        assert!(callers.is_owed());
        callers.said(client, &said(&["a"], &[]), Backend::Etcd, None);
        callers.progress(&way(1, "a"), &told(Outcome::Changed));
        assert_eq!(heard(&mut ear), ["delivered a", "said", "end"]);
        callers.leave(client);
        assert!(!callers.is_owed());
    }

    #[test]
    fn who_waits_hears_of_each_target_until_its_last_word() {
        let (mut callers, (tell, mut ear)) = (Callers::default(), unbounded_channel());
        let client = callers.enter(tell);
        let ways = ["a", "b", "c", "d"].map(|name| way(1, name));
        callers.wait(client, BTreeSet::from(ways.clone()));
        // Before the backend has said that it has it.
        callers.progress(&ways[0], &told(Outcome::Taken));
        callers.said(client, &said(&["a", "b", "c"], &["d"]), Backend::Etcd, None);
        let first = [
            "delivered a",
            "delivered b",
            "delivered c",
            "failed d",
            "said",
            "a taken",
        ];
        assert_eq!(heard(&mut ear), first);
        assert!(!callers.is_owed());
        callers.progress(&way(2, "a"), &told(Outcome::Failed));
        callers.progress(&ways[0], &told(Outcome::Changed));
        callers.progress(&ways[0], &told(Outcome::Changed));
        callers.progress(&ways[1], &News::ReplacedBy(Id::from_bits(9)));
        callers.progress(&ways[2], &News::NoAnswer);
        assert_eq!(heard(&mut ear), ["a changed", "b replaced", "c silent"]);
        callers.progress(&way(9, "b"), &told(Outcome::Held));
        callers.progress(&way(9, "b"), &told(Outcome::Satisfied));
        assert_eq!(heard(&mut ear), ["b held", "b satisfied", "end"]);
    }
}
