//! The protocol between the service and the executor. A request has triggers (values of `to/`) and
//! events that matched a rule; the answer has an outcome for each.
//!
//! Another request asks for the current outcomes of accepted triggers by their ids, and has the
//! same kind of answer. With it come pidfds (`SCM_RIGHTS`) of the waiters and runs whose ends
//! change an outcome.
//!
//! A third one has ids of runs whose events are all published, so that the executor removes their
//! files later, or ids of requests whose files it removes. Its answer is empty.
//!
//! A connection carries one request and one answer. All lengths come first, and are checked before
//! a byte of what they measure is read. No request can name a program, a file or an option.

pub use again_base::schema::origin::MOST_TOGETHER;
use serde::{Deserialize, Serialize};

use crate::wire::name::Id;
use crate::wire::outcome::{Outcome, Ran};
use crate::wire::rule_match::RuleMatch;
use crate::wire::{Malformed, rule_match};

/// Largest total size of the values of a request, in bytes.
pub const MOST_BYTES: usize = 2 << 20;
/// Largest length of the rest of an answer, in bytes.
pub const LONGEST_ANSWER: usize = 128 << 10;
/// Largest number of pidfds with an answer.
pub const MOST_PIDFDS: usize = 8;
/// Length of the head of a request or an answer, in bytes; it has the count or length of the rest.
pub const HEAD: usize = 8;

const ASK: &[u8; 4] = b"AGT1";
const LOOK: &[u8; 4] = b"AGW1";
const MARK: &[u8; 4] = b"AGM1";
const SAY: &[u8; 4] = b"AGA1";

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Accept this number of values; their lengths follow.
    Take(usize),
    /// Report the outcomes of this number of triggers; their ids follow, [`Id::MOST`] bytes each.
    Became(usize),
    /// Mark the files of this number of runs, or remove those of requests; their ids follow,
    /// [`Id::MOST`] bytes each.
    Mark(usize),
}

/// Proof of a trigger, which the executor verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// A trigger's signed value from the backend.
    Register(Vec<u8>),
    /// An event that matched a rule; data that several matches share is there once.
    RuleMatch(RuleMatch),
}

impl Evidence {
    /// Length of the encoded value, in bytes.
    pub fn length(&self) -> usize {
        match self {
            Evidence::Register(bytes) => bytes.len(),
            Evidence::RuleMatch(met) => met.length(),
        }
    }

    /// The encoded value.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Evidence::Register(bytes) => bytes.clone(),
            Evidence::RuleMatch(met) => met.write(),
        }
    }
}

/// Outcome of one value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// `taken` if the value was accepted; otherwise another outcome.
    pub outcome: Outcome,
    /// Reason in a sentence for people.
    pub why: String,
    /// Run that carried out the trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<Ran>,
    /// Whether the answer may change when a process ends whose pidfd did not come with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unwatched: bool,
    /// Number above which the trigger would have been accepted, if it is superseded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<u64>,
}

/// Encodes a request to accept values.
///
/// # Errors
/// A length or the count is out of its range.
pub fn ask(values: &[Vec<u8>]) -> Result<Vec<u8>, Malformed> {
    let mut out = head(ASK, values.len());
    let lengths: Vec<usize> = values.iter().map(Vec::len).collect();
    for length in &lengths {
        out.extend(u32::try_from(*length).unwrap_or(u32::MAX).to_be_bytes());
    }
    asked(&out)?;
    measured(values.len(), &out[HEAD..])?;
    out.extend(values.concat());
    Ok(out)
}

/// Encodes a request for outcomes. [`Outcome::Taken`] in an answer means that there is no later
/// outcome yet.
///
/// # Errors
/// There are no ids, or too many.
pub fn became(ids: &[Id]) -> Result<Vec<u8>, Malformed> {
    of_ids(LOOK, ids)
}

/// Encodes the ids of runs whose events are all published, or of requests that are done.
///
/// # Errors
/// There are no ids, or too many.
pub fn mark(runs: &[Id]) -> Result<Vec<u8>, Malformed> {
    of_ids(MARK, runs)
}

fn of_ids(magic: &[u8; 4], ids: &[Id]) -> Result<Vec<u8>, Malformed> {
    let mut out = head(magic, ids.len());
    asked(&out)?;
    out.extend(ids.iter().flat_map(|id| id.as_str().bytes()));
    Ok(out)
}

/// Decodes the ids of a request.
///
/// # Errors
/// An id is malformed.
pub fn ids(bytes: &[u8]) -> Result<Vec<Id>, Malformed> {
    let id = |bytes: &[u8]| String::from_utf8_lossy(bytes).parse();
    bytes.chunks(Id::MOST).map(id).collect()
}

/// Kind of a request, from its head.
///
/// # Errors
/// The head is not that of a request, or its count is 0 or too large.
pub fn asked(head: &[u8]) -> Result<Asked, Malformed> {
    let is = |magic: &[u8; 4]| head.starts_with(&magic[..3]);
    let (count, asked): (_, fn(usize) -> Asked) = if is(LOOK) {
        (number(LOOK, head)?, Asked::Became)
    } else if is(MARK) {
        (number(MARK, head)?, Asked::Mark)
    } else {
        (number(ASK, head)?, Asked::Take)
    };
    if (1..=MOST_TOGETHER).contains(&count) {
        return Ok(asked(count));
    }
    let why = format!("{count} values were handed over together: 1 to {MOST_TOGETHER} are allowed");
    Err(Malformed::new(why))
}

/// Lengths of the values, from the `count` encoded lengths.
///
/// # Errors
/// A length or the total is too large, or the lengths are incomplete.
pub fn measured(count: usize, lengths: &[u8]) -> Result<Vec<usize>, Malformed> {
    let (words, rest) = lengths.as_chunks::<4>();
    if words.len() != count || !rest.is_empty() {
        return Err(Malformed::new("the lengths of the values are cut short"));
    }
    let length = |word: &[u8; 4]| usize::try_from(u32::from_be_bytes(*word)).unwrap_or(usize::MAX);
    let lengths: Vec<usize> = words.iter().map(length).collect();
    if let Some(long) = lengths.iter().find(|length| **length > rule_match::MOST) {
        let why = format!(
            "a value of {long} bytes is too long: {} are allowed",
            rule_match::MOST
        );
        return Err(Malformed::new(why));
    }
    let all: usize = lengths.iter().sum();
    if all > MOST_BYTES {
        let why = format!("{all} bytes of values are too many together: {MOST_BYTES} are allowed");
        return Err(Malformed::new(why));
    }
    Ok(lengths)
}

/// Encodes an answer.
///
/// # Panics
/// If the encoded answer is longer than [`LONGEST_ANSWER`]. Sentences of
/// [`crate::wire::outcome::words`] are short enough.
pub fn say(answers: &[Answer]) -> Vec<u8> {
    let body = serde_json::to_vec(answers).expect("plain text");
    assert!(
        body.len() <= LONGEST_ANSWER,
        "an answer of {} bytes",
        body.len()
    );
    let mut out = head(SAY, body.len());
    out.extend(body);
    out
}

/// Length of the rest of an answer, from its head.
///
/// # Errors
/// The head is not that of an answer, or the length is too large.
pub fn length(head: &[u8]) -> Result<usize, Malformed> {
    let length = number(SAY, head)?;
    if length <= LONGEST_ANSWER {
        return Ok(length);
    }
    Err(Malformed::new(format!(
        "an answer of {length} bytes is too long"
    )))
}

/// Decodes the rest of an answer to a request with `count` values.
///
/// # Errors
/// The answer is malformed, or has another number of outcomes.
pub fn answers(count: usize, rest: &[u8]) -> Result<Vec<Answer>, Malformed> {
    let read: Vec<Answer> = serde_json::from_slice(rest)
        .map_err(|e| Malformed::new(format!("the executor answered what is no answer: {e}")))?;
    read.iter()
        .filter_map(|one| one.ran.as_ref())
        .try_for_each(Ran::check)?;
    if read.len() == count {
        return Ok(read);
    }
    let given = read.len();
    Err(Malformed::new(format!(
        "the executor gave {given} answers for {count} values"
    )))
}

fn head(magic: &[u8; 4], number: usize) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend(u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
    out
}

fn number(magic: &[u8; 4], head: &[u8]) -> Result<usize, Malformed> {
    match head.split_first_chunk::<4>() {
        Some((is, rest)) if is == magic && rest.len() >= 4 => {
            let number = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
            Ok(usize::try_from(number).unwrap_or(usize::MAX))
        }
        _ => Err(crate::wire::other_version(
            magic,
            head,
            "the language of 'again-fleet executor'",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a question as the executor does, from bytes.
    fn read(question: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        let short = || Malformed::new("short");
        let (head, rest) = question.split_at_checked(HEAD).ok_or_else(short)?;
        let Asked::Take(count) = asked(head)? else {
            return Err(Malformed::new("it hands over nothing"));
        };
        let (lengths, mut rest) = rest.split_at_checked(4 * count).ok_or_else(short)?;
        let mut values = Vec::new();
        for length in measured(count, lengths)? {
            let (value, after) = rest.split_at_checked(length).ok_or_else(short)?;
            values.push(value.to_vec());
            rest = after;
        }
        Ok(values)
    }

    #[test]
    fn what_is_too_much_is_neither_asked_nor_read() {
        let many = vec![Vec::new(); MOST_TOGETHER + 1];
        let long = vec![vec![0; rule_match::MOST + 1]];
        let all = vec![vec![0; rule_match::MOST]; MOST_TOGETHER];
        for (values, words) in [
            (&many, "33 values"),
            (&long, "a value of"),
            (&all, "too many together"),
            (&Vec::new(), "0 values"),
        ] {
            let error = ask(values).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
            let mut question = head(ASK, values.len());
            question.extend(
                values
                    .iter()
                    .flat_map(|value| (value.len() as u32).to_be_bytes()),
            );
            assert_eq!(read(&question).expect_err(words).to_string(), error);
        }
        for head in [b"AGT2\0\0\0\x01", b"AGW2\0\0\0\x01", b"AGM2\0\0\0\x01"] {
            assert_eq!(
                asked(head).expect_err("newer").to_string(),
                "version 2 of the language of 'again-fleet executor': this program knows version 1"
            );
        }
        assert_eq!(
            asked(b"garbage!").expect_err("garbage").to_string(),
            "that is not the language of 'again-fleet executor'"
        );
        assert!(asked(b"AGT1\0\0\0").is_err());
        assert!(length(b"AGA1\x7f\0\0\0").is_err());
    }

    #[test]
    fn what_became_of_triggers_is_asked_by_their_ids() {
        let some: Vec<Id> = (0..3).map(Id::from_bits).collect();
        let question = became(&some).expect("asked");
        let (head, rest) = question.split_at(HEAD);
        assert_eq!(asked(head), Ok(Asked::Became(3)));
        let told = mark(&some).expect("asked");
        assert_eq!(asked(&told), Ok(Asked::Mark(3)));
        assert_eq!(told[HEAD..], *rest);
        assert_eq!((rest.len(), ids(rest)), (3 * Id::MOST, Ok(some.clone())));
        assert!(became(&[]).is_err() && became(&vec![some[0].clone(); 33]).is_err());
        assert!(ids(&rest[1..]).is_err() && ids(&[b'/'; 32]).is_err());
    }

    /// The longest sentences for the most values have room.
    #[test]
    fn any_answer_can_be_given() {
        let answer = Answer {
            outcome: Outcome::TooLate,
            why: crate::wire::outcome::words(&"\"".repeat(2000)),
            ran: Some(Ran {
                log: "x".repeat(64),
                began: Some(u64::MAX),
                ended: Some(u64::MAX),
                reruns: u32::MAX,
                last: Some(Outcome::TooLate),
                more: false,
            }),
            is_unwatched: true,
            above: Some(u64::MAX),
        };
        let said = say(&vec![answer.clone(); MOST_TOGETHER]);
        let rest = &said[HEAD..];
        assert_eq!(length(&said), Ok(rest.len()));
        assert_eq!(
            answers(MOST_TOGETHER, rest),
            Ok(vec![answer; MOST_TOGETHER])
        );
        assert!(answers(1, rest).is_err() && answers(MOST_TOGETHER, &rest[1..]).is_err());
    }

    proptest! {
        #[test]
        fn a_question_comes_back(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..=MOST_TOGETHER)) {
            prop_assert_eq!(read(&ask(&values).expect("asked")), Ok(values));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = (read(&bytes), length(&bytes), answers(1, &bytes));
            let mut question = head(ASK, 1);
            question.extend(&bytes);
            let _ = read(&question);
        }
    }
}
