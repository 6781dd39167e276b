//! Checks of the backend without the service: each of its servers, this node's permissions, and
//! alarms.

use std::time::Duration;

use again_base::layout::plural;

use super::finding::Finding;
use crate::access::Access;
use crate::backend::etcd::Etcd;
use crate::backend::nats::Nats;
use crate::backend::{Error, Health, Times, tls};
use crate::settings::{Backend, Settings};
use crate::wire::key;

/// Time limit of a call to a server.
const PATIENCE: Duration = Duration::from_secs(3);

/// Answer of a server.
struct Asked {
    server: String,
    /// The server's health, and whether this node may read its own triggers.
    answer: Result<(Health, Result<(), Error>), Error>,
}

/// Checks all servers.
pub fn look(settings: &Settings) -> Vec<Finding> {
    let access = match Access::new(settings) {
        Ok(access) => access,
        Err(why) => return vec![Finding::error("backend", why, "see again-fleet.toml(5)")],
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asked = match runtime {
        Ok(runtime) => runtime.block_on(ask_all(&access)),
        Err(e) => return vec![Finding::error("backend", e.to_string(), "try again")],
    };
    judge(settings.backend, &asked)
}

async fn ask_all(access: &Access) -> Vec<Asked> {
    let mut asked = Vec::new();
    for server in &access.servers {
        let one = ask(access, std::slice::from_ref(server));
        let answer = tokio::time::timeout(PATIENCE * 3, one).await;
        let silent = || Err(Error::Unreachable("no answer".to_owned()));
        asked.push(Asked {
            server: server.clone(),
            answer: answer.unwrap_or_else(|_| silent()),
        });
    }
    asked
}

async fn ask(access: &Access, server: &[String]) -> Result<(Health, Result<(), Error>), Error> {
    let times = Times {
        call: PATIENCE,
        ..Times::default()
    };
    let (tls, node) = (access.tls.as_ref(), &access.node);
    let own = key::Prefix::To(node).encode(&access.namespace);
    match access.backend {
        Backend::Etcd => {
            let etcd = Etcd::new(server, tls, times).await?;
            let health = etcd.health().await?;
            Ok((health, etcd.may_read(&own).await))
        }
        Backend::Nats => {
            let namespace = access.namespace.clone();
            let nats = Nats::connect(server, tls, node, namespace, times).await?;
            let health = nats.health().await?;
            Ok((health, nats.may_read(&own).await))
        }
    }
}

/// Remedy for a backend that is full.
pub const MAKE_ROOM: &str = "etcd: compact and defragment it, raise its quota (--quota-backend-bytes), then 'etcdctl alarm disarm'; NATS: give it a larger disk or max_file_store";

/// Remedy for an error of this backend.
fn remedy(backend: Backend, error: &Error) -> &'static str {
    if let Error::Unreachable(why) | Error::Unknown(why) = error
        && let Some(remedy) = tls::remedy(why)
    {
        return remedy;
    }
    match (backend, error) {
        (_, Error::Full(_)) => MAKE_ROOM,
        (_, Error::Denied(_)) => {
            "enrol this node's certificate with the backend, or mend its rights there"
        }
        (Backend::Nats, Error::Unreachable(why)) if is_without_jetstream(why) => {
            "start nats-server with JetStream (jetstream { } in its configuration)"
        }
        (Backend::Etcd, _) => {
            "see whether etcd runs there, and in its log whether it refuses this node's certificate"
        }
        (Backend::Nats, _) => {
            "see whether nats-server runs there, and in its log whether it refuses this node's certificate"
        }
    }
}

/// Whether the error is that of nats-server without JetStream.
fn is_without_jetstream(why: &str) -> bool {
    let why = why.to_ascii_lowercase();
    why.contains("jetstream") || why.contains("no responders")
}

fn judge(backend: Backend, asked: &[Asked]) -> Vec<Finding> {
    let all = asked.len();
    let good: Vec<&Health> = asked
        .iter()
        .filter_map(|one| one.answer.as_ref().ok().map(|(health, _)| health))
        .collect();
    let mut found = Vec::new();
    let failed: Vec<(&str, &Error)> = asked
        .iter()
        .filter_map(|one| Some((one.server.as_str(), one.answer.as_ref().err()?)))
        .collect();
    let words: Vec<String> = failed
        .iter()
        .map(|(server, error)| format!("{server} {error}"))
        .collect();
    let words = words.join("; ");
    let version = good.first().map_or("", |health| health.version.as_str());
    let s = plural(all);
    found.push(match failed.first() {
        None => {
            let what = format!("{backend} {version} is reached at {all} server{s}");
            Finding::ok("backend", what)
        }
        Some((_, error)) if good.is_empty() => Finding::error(
            "backend",
            format!("{backend}: {words}"),
            remedy(backend, error),
        ),
        Some((_, error)) => {
            let count = good.len();
            let what =
                format!("{backend} {version} is reached at {count} of {all} servers: {words}");
            Finding::warning("backend", what, remedy(backend, error))
        }
    });
    let mut alarms: Vec<&String> = good.iter().flat_map(|health| &health.alarms).collect();
    alarms.sort();
    alarms.dedup();
    found.extend(alarms.into_iter().map(|alarm| self::alarm(backend, alarm)));
    let denied = asked
        .iter()
        .find_map(|one| one.answer.as_ref().ok()?.1.as_ref().err());
    if let Some(error) = denied {
        let what = format!("{backend} {error}, when this node reads its own triggers");
        found.push(Finding::error("permissions", what, remedy(backend, error)));
    }
    found
}

/// Finding about an alarm of a server.
fn alarm(backend: Backend, alarm: &str) -> Finding {
    let todo = if alarm.contains("NOSPACE") {
        "etcd takes no writes any more: compact and defragment it, raise its quota (--quota-backend-bytes), then 'etcdctl alarm disarm'"
    } else if alarm.contains("CORRUPT") {
        "a member's data differs from the others': remove it, and add it again"
    } else if alarm.contains("no leader") {
        "see whether most of its members run and reach each other"
    } else {
        "see its log"
    };
    Finding::error("backend", format!("{backend} complains: {alarm}"), todo)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Grade;
    use super::*;

    fn health(alarms: &[&str]) -> Health {
        Health {
            version: "3.4.23".to_owned(),
            alarms: alarms.iter().map(|alarm| (*alarm).to_owned()).collect(),
        }
    }

    fn asked(server: &str, answer: Result<(Health, Result<(), Error>), Error>) -> Asked {
        Asked {
            server: server.to_owned(),
            answer,
        }
    }

    fn words(found: &[Finding]) -> Vec<(Grade, &str)> {
        found
            .iter()
            .map(|one| (one.grade, one.what.as_str()))
            .collect()
    }

    fn refused() -> Error {
        Error::Unreachable("connection refused".to_owned())
    }

    #[test]
    fn one_server_of_several_is_enough_and_said() {
        let good = || asked("https://a:1", Ok((health(&[]), Ok(()))));
        let bad = || asked("https://b:1", Err(refused()));
        assert_eq!(
            words(&judge(Backend::Etcd, &[good()])),
            [(Grade::Ok, "etcd 3.4.23 is reached at 1 server")]
        );
        let some = "etcd 3.4.23 is reached at 1 of 2 servers: https://b:1 cannot be reached: connection refused";
        assert_eq!(
            words(&judge(Backend::Etcd, &[good(), bad()])),
            [(Grade::Warning, some)]
        );
        let none = judge(Backend::Etcd, &[bad()]);
        assert_eq!(
            words(&none),
            [(
                Grade::Error,
                "etcd: https://b:1 cannot be reached: connection refused"
            )]
        );
    }

    #[test]
    fn alarms_and_rights_are_told_with_what_to_do() {
        let denied = Err(Error::Denied("permission denied".to_owned()));
        let one = asked("a", Ok((health(&["memberID:1 alarm:NOSPACE"]), denied)));
        let found = judge(Backend::Etcd, &[one]);
        let [ok, space, rights] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(ok.grade, Grade::Ok);
        assert_eq!(space.grade, Grade::Error);
        assert!(
            space
                .todo
                .as_ref()
                .is_some_and(|todo| todo.contains("alarm disarm"))
        );
        assert_eq!((rights.about, rights.grade), ("permissions", Grade::Error));
        assert!(
            rights
                .what
                .contains("permission denied, when this node reads"),
            "{}",
            rights.what
        );
    }

    #[test]
    fn nats_without_jetstream_is_named() {
        let why = "jetstream not enabled for account".to_owned();
        let found = judge(Backend::Nats, &[asked("a", Err(Error::Unreachable(why)))]);
        assert!(
            found[0]
                .todo
                .as_ref()
                .is_some_and(|todo| todo.contains("JetStream"))
        );
        let found = judge(Backend::Nats, &[asked("a", Err(refused()))]);
        assert!(
            found[0]
                .todo
                .as_ref()
                .is_some_and(|todo| todo.contains("nats-server runs"))
        );
    }
}
