//! The way to root's side: what this service thinks good is handed over by a socket of the machine, a bounded part at a time.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::handover::{self, HEAD, MOST_BYTES, MOST_TOGETHER};
use crate::policy::books::Which;
use crate::step::model::Answer;
use crate::wire::met::Met;
use crate::wire::name::Id;

/// How long root's side may take for a question: it gives the helper half a minute for each of two requests, and may have to finish
/// as much that was begun before.
const PATIENCE: Duration = Duration::from_secs(130);

/// A value to hand over, and the trigger that it is.
pub type Handed = (Which, Value);

/// What is handed over.
#[derive(Debug, Clone)]
pub enum Value {
    /// A register.
    Register(Vec<u8>),
    /// An event that met a rule; what many of them share is there once.
    Met(Met),
}

impl Value {
    fn length(&self) -> usize {
        match self {
            Value::Register(bytes) => bytes.len(),
            Value::Met(met) => met.length(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Value::Register(bytes) => bytes.clone(),
            Value::Met(met) => met.write(),
        }
    }
}

/// Hands everything over. What was answered, and why the rest was not.
pub async fn hand_over(socket: &Path, values: Vec<Handed>) -> (Vec<Answer>, Option<String>) {
    let mut answers = Vec::with_capacity(values.len());
    for part in parts(values) {
        let asked = timeout(PATIENCE, ask(socket, &part)).await;
        let asked = asked.unwrap_or_else(|_| {
            Err(io::Error::other(format!(
                "no answer within {} s",
                PATIENCE.as_secs()
            )))
        });
        match asked {
            Ok(said) => {
                let told = part.into_iter().zip(said).map(|((which, _), said)| Answer {
                    which,
                    outcome: said.outcome,
                    why: said.why,
                });
                answers.extend(told);
            }
            Err(e) => return (answers, Some(format!("{}: {e}", socket.display()))),
        }
    }
    (answers, None)
}

/// As much together as one question may have.
fn parts(values: Vec<Handed>) -> Vec<Vec<Handed>> {
    let mut parts: Vec<Vec<Handed>> = Vec::new();
    let mut bytes = 0;
    for value in values {
        bytes += value.1.length();
        match parts.last_mut() {
            Some(part) if part.len() < MOST_TOGETHER && bytes <= MOST_BYTES => part.push(value),
            _ => {
                bytes = value.1.length();
                parts.push(vec![value]);
            }
        }
    }
    parts
}

/// What became of triggers that were taken, as far as root's side knows.
///
/// # Errors
/// It does not answer.
pub async fn became(
    socket: &Path,
    taken: Vec<Which>,
) -> io::Result<Vec<(Which, handover::Answer)>> {
    let mut answers = Vec::with_capacity(taken.len());
    for part in taken.chunks(MOST_TOGETHER) {
        let ids: Vec<Id> = part.iter().map(|which| which.id.clone()).collect();
        let question = handover::became(&ids).map_err(io::Error::other)?;
        let asked = timeout(PATIENCE, converse(socket, &question, part.len())).await;
        let said = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        answers.extend(part.iter().cloned().zip(said));
    }
    Ok(answers)
}

async fn ask(socket: &Path, part: &[Handed]) -> io::Result<Vec<handover::Answer>> {
    let values: Vec<Vec<u8>> = part.iter().map(|(_, value)| value.bytes()).collect();
    let question = handover::ask(&values).map_err(io::Error::other)?;
    converse(socket, &question, part.len()).await
}

async fn converse(
    socket: &Path,
    question: &[u8],
    count: usize,
) -> io::Result<Vec<handover::Answer>> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(question).await?;
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).await?;
    let mut rest = vec![0; handover::length(&head).map_err(io::Error::other)?];
    stream.read_exact(&mut rest).await?;
    handover::answers(count, &rest).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::trigger::tests::trigger;

    fn sizes(lengths: &[usize]) -> Vec<Vec<usize>> {
        let which = Which::from(&trigger());
        let values = lengths
            .iter()
            .map(|length| (which.clone(), Value::Register(vec![0; *length])));
        let parts = parts(values.collect());
        let sizes = parts
            .iter()
            .map(|part| part.iter().map(|(_, value)| value.length()).collect());
        sizes.collect()
    }

    #[test]
    fn no_question_has_more_than_it_may() {
        assert!(sizes(&[]).is_empty());
        assert_eq!(
            sizes(&[1; 70]).iter().map(Vec::len).collect::<Vec<_>>(),
            [32, 32, 6]
        );
        let third = MOST_BYTES / 3;
        assert_eq!(
            sizes(&[third, third, third, third, 1, 1]),
            [vec![third; 3], vec![third, 1, 1]]
        );
        assert_eq!(sizes(&[MOST_BYTES, 1]), [vec![MOST_BYTES], vec![1]]);
    }
}
