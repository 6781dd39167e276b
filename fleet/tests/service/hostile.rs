//! Hostile values: a writer to the backend may put anything there. None of it is run, each value is
//! logged with the reason and counted, and the service keeps working.

use std::fs;

use again_fleet::ask::Question;
use again_fleet::backend::Error;
use again_fleet::wire::envelope;
use again_fleet::wire::lineage::Origin;
use again_fleet::wire::name::{Id, Node as Name};
use again_fleet::wire::outcome::{Outcome, TriggerStatus};
use again_fleet::wire::trigger::Trigger;

use crate::ca::Ca;
use crate::fired::{by, sealed_as, trigger, unsigned};
use crate::node::{Node, request, until};
use crate::servers::{Kind, Server};
use crate::straight::Straight;

const HOUR: i64 = 3_600_000;

macro_rules! over_both_backends {
    ($($case:ident,)*) => {
        mod etcd {
            use super::Kind;
            $(#[test] fn $case() { super::$case(Kind::Etcd) })*
        }
        mod nats {
            use super::Kind;
            $(#[test] fn $case() { super::$case(Kind::Nats) })*
        }
    };
}

over_both_backends! {
    what_nobody_may_put_there_is_named_and_counted,
    a_copy_that_is_put_back_is_not_run_again,
    what_is_too_old_or_from_the_future_is_not_run,
    who_was_revoked_is_not_listened_to,
    a_result_in_anothers_name_is_not_believed,
}

fn name(text: &str) -> Name {
    text.parse().expect("a certname")
}

/// Returns a trigger of web1 with this name, for lb1.
fn named(text: &str) -> Trigger {
    Trigger {
        name: text.parse().expect("a name"),
        ..trigger("web1.test")
    }
}

/// Puts a value below `to/lb1=test/`, and waits until it was rejected for this reason.
#[track_caller]
fn is_rejected(lb1: &Node, straight: &Straight, at: &str, value: &[u8], why: &str) {
    let before = lb1.how().rejected;
    let key = format!("to/lb1=test/{at}");
    straight.put(&key, value).expect("put");
    until(why, || lb1.how().rejected > before);
    let log = lb1.log();
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains(why), "{at}: {last}");
    assert!(!log.contains('\u{1b}'), "{log}");
}

fn what_nobody_may_put_there_is_named_and_counted(kind: Kind) {
    // A nats-server accepts a megabyte unless its operator allows more.
    let server = match kind {
        Kind::Etcd => Server::start(kind),
        Kind::Nats => Server::configured(kind, "max_payload: 4194304"),
    };
    let lb1 = Node::new("lb1.test", &server);
    let straight = Straight::at(&server, "web2.test");
    lb1.is_linked(true);
    let away = |at: &str, value: &[u8], why| is_rejected(&lb1, &straight, at, value, why);
    let case = |text: &str, value: &[u8], why| {
        let at = format!("web1=test/{text}");
        is_rejected(&lb1, &straight, &at, value, why);
        let stands = || straight.list(&format!("to/lb1=test/{at}"));
        until("its removal", || stands().is_empty());
    };
    case("a", &unsigned(&named("a")), "nobody signed it");
    let mut spoilt = by("web1.test", &named("b"));
    let at = spoilt.len() - 20;
    spoilt[at] ^= 1;
    case("b", &spoilt, "web1.test did not sign this");
    case("c", &by("foreign", &named("c")), "not signed by our CA");
    let why = "web2.test signed it in the name of web1.test";
    case("d", &by("web2.test", &named("d")), why);
    // Copies of triggers with another target, another name and another sender.
    let other = Trigger {
        target: name("db1.test"),
        ..named("e")
    };
    case(
        "e",
        &by("web1.test", &other),
        "web1.test signed it for db1.test",
    );
    let good = by("web1.test", &named("f"));
    case("g", &good, "web1.test signed it for another place");
    away(
        "web2=test/f",
        &good,
        "web1.test signed it for another place",
    );
    // Hops that the trigger has made are removed from the signed value.
    let mut far = named("h");
    far.lineage.0[0] = Origin {
        path: ["db1.test", "db1.test", "web1.test"].map(name).to_vec(),
        ..far.lineage.0[0].clone()
    };
    let far = by("web1.test", &far);
    let near = replaced(
        &far,
        br#""db1.test","db1.test","#,
        br#""db1.test",           "#,
    );
    case("h", &near, "web1.test did not sign this");
    for (text, value) in [
        ("i", b"/bin/sh -c id\0\x1b[2J".to_vec()),
        ("j", Vec::new()),
        ("k", vec![0xff; envelope::MOST]),
    ] {
        case(text, &value, "no envelope of again-fleet's version 1");
    }
    case(
        "l",
        &vec![b'{'; 1_400_000],
        "1400000 bytes of a value are too many",
    );
    // The backend itself limits the size of values.
    let huge = straight.put("to/lb1=test/web1=test/m", &vec![0; 10 << 20]);
    assert!(
        matches!(
            huge,
            Err(Error::TooLarge | Error::Unknown(_) | Error::Unreachable(_))
        ),
        "{huge:?}"
    );
    // Names that would leave their prefix.
    for at in [
        "web1=test/a/b",
        "web1=test/",
        "web1=test/%2f",
        "we\u{1b}[2Jb1/n",
        "\u{202e}/n",
        "web1=test/*",
        "web1=test/>",
    ] {
        away(at, &good, "the backend holds something that is not ours");
    }
    // NATS has no subject with two adjacent dots, nor one with a line break.
    for at in ["web1=test/..", "../lb1=test/web1=test/n", "web1=test/n\n"] {
        if kind == Kind::Etcd {
            away(at, &good, "the backend holds something that is not ours");
        } else {
            let put = straight.put(&format!("to/lb1=test/{at}"), &good);
            assert!(put.is_err(), "{at:?}: {put:?}");
        }
    }
    // The last value is unsigned; a valid trigger is accepted all the same.
    straight.put("to/lb1=test/web1=test/f", &good).expect("put");
    until("its run", || lb1.runs().len() == 1);
    assert!(lb1.how().link.is_up);
}

/// Replaces bytes with others of the same length.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let at = bytes.windows(old.len()).position(|part| part == old);
    let at = at.expect("they are in there");
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}

/// A trigger is run once even if a copy is stored again, and an older one never replaces a newer
/// one.
fn a_copy_that_is_put_back_is_not_run_again(kind: Kind) {
    let server = Server::start(kind);
    let lb1 = Node::new("lb1.test", &server);
    let straight = Straight::at(&server, "web2.test");
    lb1.is_linked(true);
    let old = named("again");
    let new = Trigger {
        number: old.number + 1,
        id: Id::from_bits(7),
        ..old.clone()
    };
    let [old, new] = [old, new].map(|one| by("web1.test", &one));
    let put = |value: &[u8]| {
        straight
            .put("to/lb1=test/web1=test/again", value)
            .expect("put");
        until("its removal", || straight.list("to/").is_empty());
    };
    put(&new);
    until("its run", || lb1.runs().len() == 1);
    for copy in [&new, &old, &new, &old] {
        put(copy);
    }
    // Another service, with another executor, does not run it either: the replay ledger is on disk.
    lb1.kill();
    lb1.kill_take();
    lb1.take();
    lb1.start();
    lb1.is_linked(true);
    for copy in [&old, &new] {
        put(copy);
    }
    let log = lb1.log();
    assert!(
        log.contains("already superseded: 'again' of web1.test"),
        "{log}"
    );
    let taken = log.matches("again-fleet: taken: 'again' of web1.test");
    assert_eq!(taken.count(), 1, "{log}");
    assert!(log.contains("again-fleet: already taken: 'again'"), "{log}");
    until("the end", || {
        lb1.again(&["status"]).status.code() == Some(3)
    });
    assert_eq!(lb1.ran(), [Id::from_bits(7)]);
}

/// A trigger from the future is held, with both clocks reported, and judged again.
fn what_is_too_old_or_from_the_future_is_not_run(kind: Kind) {
    let server = Server::start(kind);
    let (web1, lb1) = (
        Node::new("web1.test", &server),
        Node::new("lb1.test", &server),
    );
    let straight = Straight::at(&server, "web2.test");
    web1.is_linked(true);
    lb1.is_linked(true);
    for (text, shift, said) in [("future", 2 * HOUR, "held"), ("past", -3 * HOUR, "expired")] {
        let now = named(text);
        let one = Trigger {
            at: now.at.saturating_add_signed(shift),
            number: now.number.saturating_add_signed(shift),
            ..now
        };
        let key = format!("to/lb1=test/web1=test/{text}");
        straight.put(&key, &by("web1.test", &one)).expect("put");
        let told = format!("again-fleet: {said}: '{text}' of web1.test");
        let held = || straight.list(&format!("result/web1=test/lb1=test/{text}"));
        until("its result", || !held().is_empty());
        if said == "held" {
            // The trigger stays: the clocks may be corrected before it expires.
            assert_eq!(straight.list(&key).len(), 1);
        } else {
            until("its removal", || straight.list(&key).is_empty());
            assert!(lb1.log().contains(&told), "{}", lb1.log());
        }
        let told = straight.told("web1.test").into_iter();
        let mut told = told.filter(|one| one.name.as_str() == text);
        let why = told.next().expect("a result").why;
        assert!(why.contains("here it is"), "{why}");
    }
    assert!(lb1.runs().is_empty());
}

/// A revocation takes effect for the next value, without a restart. After the revocation is
/// withdrawn, values are accepted again.
fn who_was_revoked_is_not_listened_to(kind: Kind) {
    let server = Server::start(kind);
    let lb1 = Node::new("lb1.test", &server);
    let straight = Straight::at(&server, "web2.test");
    lb1.is_linked(true);
    let list = |from: &str| {
        fs::write(lb1.path("new"), Ca::get().read(from)).expect("written");
        fs::rename(lb1.path("new"), lb1.path("crl.pem")).expect("renamed");
    };
    list("crl-web1.pem");
    let value = by("web1.test", &named("again"));
    let why = "the certificate of web1.test was revoked";
    is_rejected(&lb1, &straight, "web1=test/again", &value, why);
    until("its removal", || straight.list("to/").is_empty());
    list("crl.pem");
    straight
        .put("to/lb1=test/web1=test/again", &value)
        .expect("put");
    until("its run", || lb1.runs().len() == 1);
}

/// A result that the target did not sign removes no trigger from the outbox.
fn a_result_in_anothers_name_is_not_believed(kind: Kind) {
    let server = Server::start(kind);
    let web1 = Node::new("web1.test", &server);
    let straight = Straight::at(&server, "web2.test");
    web1.is_linked(true);
    let one = request("again", &["lb1.test"]);
    let mut waits = web1.ask(&Question::Fire {
        request: one.clone(),
        wait: true,
    });
    let across = match kind {
        Kind::Etcd => crate::ACROSS,
        Kind::Nats => crate::ACROSS_NATS,
    };
    assert_eq!([waits.word(), waits.word()], across);
    let stands = straight.triggers("lb1.test").remove(0);
    let told = TriggerStatus {
        id: one.id.clone(),
        number: stands.number,
        sender: name("web1.test"),
        target: name("lb1.test"),
        name: stands.name,
        outcome: Outcome::Changed,
        why: String::new(),
        at: stands.at,
        stopped: vec![],
        ran: None,
        above: None,
        waits: false,
    };
    let key = "result/web1=test/lb1=test/again";
    let elsewhere = TriggerStatus {
        target: name("web2.test"),
        ..told.clone()
    };
    let older = TriggerStatus {
        number: told.number - 1,
        id: Id::from_bits(1),
        ..told.clone()
    };
    for (n, (signer, what, why)) in (1..).zip([
        (
            "web2.test",
            &told,
            "web2.test signed it in the name of lb1.test",
        ),
        ("foreign", &told, "is not signed by our CA"),
        ("web2.test", &elsewhere, "web2.test told it elsewhere"),
    ]) {
        straight.put(key, &sealed_as(signer, what)).expect("put");
        until(why, || web1.how().rejected == n);
        assert!(web1.log().contains(why), "{}", web1.log());
    }
    // A result of the target itself, for an older trigger.
    straight
        .put(key, &sealed_as("lb1.test", &older))
        .expect("put");
    // Results arrive in order: when the last one is processed, so is the older one.
    straight.put(key, b"").expect("put");
    until("the last", || web1.how().rejected == 4);
    assert_eq!(web1.how().outbox.triggers, 1);
    straight
        .put(key, &sealed_as("lb1.test", &told))
        .expect("put");
    assert_eq!(waits.all(), ["lb1.test Status(Changed, \"\")"]);
    until("an empty outbox", || web1.how().outbox.triggers == 0);
}

/// The target accepts senders according to the name in the certificate, and to the extensions that
/// the CA has put into it.
#[test]
fn who_is_listened_to_is_the_targets_to_say() {
    let server = Server::start(Kind::Etcd);
    let lb1 = Node::off("lb1.test", &server);
    lb1.set_also("accept = ['n*.test', 'pp_role=frontend']");
    lb1.take();
    lb1.start();
    let names = ["web1.test", "web2.test", "n01.test"];
    let [web1, web2, n01] = names.map(|name| Node::new(name, &server));
    for node in [&lb1, &web1, &web2, &n01] {
        node.is_linked(true);
    }
    // Three cases: the certificate has the role, has not, and has the name.
    let one = request("again", &["lb1.test"]);
    assert_eq!(web1.fire(&one), crate::ACROSS);
    lb1.runs_once(&one.id);
    let refused = Question::Fire {
        request: request("again", &["lb1.test"]),
        wait: true,
    };
    let told = web2.ask(&refused).all().pop();
    let told = told.expect("an end");
    assert!(
        told.starts_with("lb1.test Status(Refused, ")
            && told.contains("accept does not list web2.test"),
        "{told}"
    );
    let two = request("again", &["lb1.test"]);
    assert_eq!(n01.fire(&two), crate::ACROSS);
    lb1.runs_once(&two.id);
    assert_eq!(lb1.ran(), [one.id, two.id]);
    assert_eq!(lb1.how().rejected, 1);
}

/// Without certificates, any writer to the backend is believed, and the service warns about it.
#[test]
fn where_the_backend_is_trusted_it_is_said() {
    let server = Server::start(Kind::Etcd);
    let lb1 = Node::off("lb1.test", &server);
    lb1.set_also("trust = 'backend'");
    lb1.set_also("accept = ['web1.test']");
    lb1.take();
    lb1.start();
    lb1.is_linked(true);
    let first = "trust is \"backend\": nothing is signed, and whoever can write to the backend can have Puppet run here";
    assert!(lb1.log().contains(first), "{}", lb1.log());
    let straight = Straight::at(&server, "web2.test");
    let put = |one: &Trigger| {
        let key = format!(
            "to/lb1=test/{}/{}",
            one.sender.as_str().replace('.', "="),
            one.name
        );
        straight.put(&key, &unsigned(one)).expect("put");
    };
    put(&trigger("db1.test"));
    until("a refusal", || {
        lb1.log().contains("accept does not list db1.test")
    });
    put(&named("again"));
    until("its run", || lb1.runs().len() == 1);
    assert_eq!(lb1.how().rejected, 1);
}
