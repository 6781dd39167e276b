use std::time::SystemTime;

use again_base::model::{Boottime, Moment, Span, Walltime};
use again_base::schema::origin::Word;
use again_fleet::identity::authority::{Authority, Revocation};
use again_fleet::identity::{Signer, Untrusted, certificate};
use again_fleet::policy::accept::Accept;
use again_fleet::policy::judge::{Rules, Signed, Verdict, admit, judge};
use again_fleet::policy::lineage::{HOP_LIMIT, merged, next_hop};
use again_fleet::policy::replay::{Record, ReplayLedger};
use again_fleet::wire::Malformed;
use again_fleet::wire::body::Content;
use again_fleet::wire::envelope::{Draft, Envelope, Seal, Signature, seal};
use again_fleet::wire::event::{Batch, Begun, Line};
use again_fleet::wire::inventory::Inventory;
use again_fleet::wire::key::Key;
use again_fleet::wire::lineage::{Cause, Lineage};
use again_fleet::wire::name::{Id, Namespace};
use again_fleet::wire::outcome::{Entry, Outcome, TriggerStatus};
use again_fleet::wire::rule_match::RuleMatch;
use again_fleet::wire::trigger::Trigger;
use again_fleet::{ask, handover};

fn namespace() -> Namespace {
    "test".parse().expect("a namespace")
}

/// What the service sends to the executor, what comes back, and what the helper is told.
pub fn handed_over(text: &[u8]) {
    let (head, rest) = text.split_at(text.len().min(handover::HEAD));
    if let Ok(handover::Asked::Take(count)) = handover::asked(head) {
        let (lengths, _) = rest.split_at(rest.len().min(4 * count));
        if let Ok(all) = handover::measured(count, lengths) {
            assert!(all.len() == count && all.iter().sum::<usize>() <= handover::MOST_BYTES);
        }
    }
    let _ = (
        handover::length(head),
        handover::answers(1, rest),
        handover::ids(rest),
    );
    let _ = serde_json::from_slice::<Word>(text);
    if let Ok(met) = RuleMatch::read(text) {
        assert_eq!(met.write(), text);
    }
}

/// What a command asks of the service, and what it is told. What can be read can be written, and is the same then.
pub fn asked(text: &[u8]) {
    let (head, rest) = text.split_at(text.len().min(ask::HEAD));
    if let Ok(length) = ask::length_of_question(head) {
        assert!(length <= ask::LONGEST_QUESTION);
    }
    if let Ok(length) = ask::length_of_answer(head) {
        assert!(length <= ask::LONGEST_ANSWER);
    }
    if let Ok(question) = ask::question(rest) {
        let written = ask::ask(&question).expect("what was read can be written");
        assert_eq!(ask::question(&written[ask::HEAD..]), Ok(question));
    }
    if let Ok(answer) = ask::answer(rest) {
        let written = ask::say(&answer).expect("what was read can be written");
        assert_eq!(ask::answer(&written[ask::HEAD..]), Ok(answer));
    }
}

/// The settings.
pub fn settings(text: &[u8]) {
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = again_fleet::settings::check(text);
        let _ = again_fleet::settings::check_rule(text);
        let _ = again_fleet::settings::check_lock(text);
    }
}

/// A key that is one stands in one place.
pub fn key(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    for text in [text.to_string(), format!("again/v1/test/{text}")] {
        if let Ok(key) = Key::decode(&text, &namespace()) {
            assert_eq!(key.encode(&namespace()), text);
            let _ = key.signer();
        }
    }
}

/// An envelope of anybody's, with a certificate of anybody's.
pub fn envelope(bytes: &[u8]) {
    if let Ok(certificate) = certificate::read(bytes) {
        let _ = (
            certificate::signer(&certificate),
            certificate::claimed(&certificate),
        );
    }
    let Ok(envelope) = Envelope::parse(bytes) else {
        return;
    };
    let authority = Authority::new(CA, b"", Revocation::Off).expect("a CA");
    let verify = |seal: &Seal<'_>| authority.verify(seal, SystemTime::UNIX_EPOCH);
    let opened = envelope.open::<Trigger, Signer, Untrusted>(&namespace(), verify);
    assert!(opened.is_err(), "nobody has the key");
    // Had somebody signed it.
    let _ = (open::<Trigger>(bytes), open::<TriggerStatus>(bytes));
    let _ = (open::<Entry>(bytes), open::<Inventory>(bytes));
}

/// A body that somebody signed who may.
pub fn body(bytes: &[u8]) {
    let Some((which, body)) = bytes.split_first() else {
        return;
    };
    match which % 5 {
        4 => {
            drop(read::<Batch>(body));
            line(body);
        }
        0 => drop(read::<TriggerStatus>(body)),
        1 => drop(read::<Entry>(body)),
        2 => drop(read::<Inventory>(body)),
        _ => {
            if let Some(trigger) = read::<Trigger>(body) {
                take(&trigger);
            }
        }
    }
}

/// A line that a run has left. What can be read of it may be told.
fn line(text: &[u8]) {
    let mut batch = Batch {
        node: "web1.test".parse().expect("a certname"),
        run: Id::from_bits(1),
        begun: Begun {
            at: 1,
            environment: String::new(),
            puppet: String::new(),
            origins: Lineage::default(),
            unknown: false,
            lost: 0,
        },
        events: Vec::new(),
        ended: None,
    };
    match Line::read(text) {
        Ok(Line::Event(event)) if event.n > 0 => batch.events.push(event),
        Ok(Line::Ended(ended)) if ended.n > 0 => batch.ended = Some(ended),
        _ => return,
    }
    assert_eq!(batch.check(), Ok(()));
}

/// Reads a body as it would come out of an envelope. What can be read can be written, and is the same then.
fn read<T: Content + PartialEq + std::fmt::Debug>(body: &[u8]) -> Option<T> {
    let raw = raw::<T>(body);
    let content = open::<T>(&raw).ok()?;
    let draft = Draft::new(&namespace(), &content).expect("what was read can be written");
    let sealed = seal::<Malformed>(&[draft], |_| Ok(Signature::default())).expect("sealed");
    assert_eq!(open::<T>(&sealed[0]).as_ref(), Ok(&content));
    Some(content)
}

fn open<T: Content>(bytes: &[u8]) -> Result<T, Malformed> {
    let envelope = Envelope::parse(bytes)?;
    envelope
        .open(&namespace(), |_| Ok(()))
        .map(|((), content)| content)
}

/// An unsigned envelope around bytes that are no content yet.
fn raw<T: Content>(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"AGF1".to_vec();
    for part in [T::KIND.as_bytes(), b"test", b"", b"", body] {
        bytes.extend(u32::try_from(part.len()).expect("short").to_be_bytes());
        bytes.extend(part);
    }
    bytes
}

fn take(trigger: &Trigger) {
    let any = || vec!["*".parse().expect("a rule"), "*.*".parse().expect("a rule")];
    let rules = Rules {
        me: trigger.target.clone(),
        accept: Accept {
            from: any(),
            on_behalf: vec![(
                "*".parse().expect("a rule"),
                vec!["*".parse().expect("a pattern")],
            )],
        },
        skew: Span::from_secs(300),
        hop_limit: HOP_LIMIT,
        locks: Vec::new(),
    };
    let signed = Signed {
        signer: trigger.sender.clone(),
        extensions: Default::default(),
        trigger: trigger.clone(),
    };
    let _ = admit(&rules, &signed);
    let mut replays = ReplayLedger::default();
    let mut times = [
        trigger.fired(),
        trigger.expires(),
        Walltime::from_millis(u64::MAX),
    ];
    times.sort();
    for wall in times {
        let now = Moment {
            boot: "b".into(),
            uptime: Boottime::from_nanos(u64::MAX / 2),
            wall,
            ..Moment::default()
        };
        if let Verdict::Take(lineage) = judge(&rules, &replays, trigger, &now) {
            let all = merged([&lineage, &trigger.lineage]);
            let (by, to) = (&trigger.target, &trigger.sender);
            let within = next_hop(&all, (&trigger.id, Cause::Person), by, to, HOP_LIMIT);
            let _ = within.too_far.iter().map(ToString::to_string).count();
            replays.record(&Record::new(trigger, Outcome::Taken, "", rules.skew, &now));
            let again = judge(&rules, &replays, trigger, &now);
            assert_eq!(again, Verdict::Known(Outcome::Taken, String::new()));
            replays.forget(&now);
        }
    }
}

/// A root of a Puppet CA whose key is gone.
const CA: &[u8] = include_bytes!("ca.pem");
