//! Operator of a nats-server: direct access to JetStream, including requests that again-fleet never
//! makes.

use std::time::Duration;

use again_fleet::backend::tls;
use async_nats::{Client, ConnectOptions, HeaderMap, Request};
use serde_json::{Value, json};

use crate::servers::Server;

pub struct Operator {
    client: Client,
    stream: String,
}

impl Operator {
    /// Connects, for requests about this stream.
    pub async fn of(server: &Server, stream: &str) -> Operator {
        let tls = tls::configuration(&crate::servers::tls("web2.test")).expect("certificates");
        let options = ConnectOptions::new()
            .require_tls(true)
            // Inbox prefix that the permissions of nodes allow.
            .custom_inbox_prefix("_INBOX_web2=test")
            .tls_client_config(tls);
        Operator {
            client: options.connect(server.address()).await.expect("connected"),
            stream: stream.to_owned(),
        }
    }

    /// Sends a request about the stream or a consumer, which must succeed.
    pub async fn ask(&self, verb: &str, consumer: &str, question: Value) -> Value {
        let subject = self.subject(verb, consumer);
        let question = question.to_string().into();
        let answer = self.client.request(subject, question).await;
        let answer = answer.unwrap_or_else(|e| panic!("{verb}: {e}"));
        let answer: Value = serde_json::from_slice(&answer.payload).expect("JSON");
        assert_eq!(answer.get("error"), None, "{verb}: {answer:#}");
        answer
    }

    fn subject(&self, verb: &str, consumer: &str) -> String {
        let words = [verb, &self.stream, consumer];
        let words = words.iter().filter(|word| !word.is_empty());
        let words: Vec<&str> = words.copied().collect();
        format!("$JS.API.{}", words.join("."))
    }

    /// Publishes something with headers, as any client of the server may.
    pub async fn publish(&self, subject: String, headers: HeaderMap, payload: &'static [u8]) {
        let request = Request::new().headers(headers).payload(payload.into());
        let stored = self.client.send_request(subject, request).await;
        stored.expect("stored");
    }

    /// Returns the consumer of a watch of these subjects. The consumer of a list exists for a while
    /// too.
    pub async fn feed(&self, filter: &str) -> Value {
        let all = self.ask("CONSUMER.LIST", "", json!({})).await;
        let is_it = |one: &&Value| {
            let config = &one["config"];
            one["push_bound"] == true
                && config["filter_subject"] == filter
                && config["deliver_policy"] == "by_start_sequence"
        };
        let all = all["consumers"].as_array().expect("a list");
        all.iter().find(is_it).expect("a feed").clone()
    }

    /// Makes the server send "consumer deleted" to the subject of a feed: deletes another consumer,
    /// for whose messages a request named that subject for its answers.
    pub async fn tell_of_an_end(&self, feed: &Value) {
        let inbox = feed["config"]["deliver_subject"]
            .as_str()
            .expect("a subject");
        let config = json!({ "name": "other", "ack_policy": "none", "deliver_policy": "new" });
        let other = json!({ "stream_name": self.stream, "config": config });
        self.ask("CONSUMER.CREATE", "other", other).await;
        let next = self.subject("CONSUMER.MSG.NEXT", "other");
        let question = json!({ "batch": 1, "expires": 60_000_000_000_u64 }).to_string();
        let asked = self
            .client
            .publish_with_reply(next, inbox.to_owned(), question.into());
        asked.await.expect("asked");
        // The server registers such a request with a delay, and reports nothing about one that it
        // has not registered.
        loop {
            let other = self.ask("CONSUMER.INFO", "other", json!({})).await;
            if other["num_waiting"] == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.ask("CONSUMER.DELETE", "other", json!({})).await;
    }
}
