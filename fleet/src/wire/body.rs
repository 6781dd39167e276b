//! Bodies of all kinds: JSON, a kind with its version, and bounds that both sides check.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Malformed;
use super::key::Key;
use super::name::Node;

/// Longest body, in bytes. The largest that the bounds of any kind allow is smaller.
pub const MOST: usize = 128 << 10;

/// Content of a body.
pub trait Content: Serialize + DeserializeOwned {
    /// Kind and version. A change that an older program would misread gets a new version; a new
    /// field that it may ignore does not.
    const KIND: &'static str;

    /// Checks the bounds of the content.
    ///
    /// # Errors
    /// A sentence that says which bound is exceeded.
    fn check(&self) -> Result<(), Malformed>;
}

/// Content that a node signs in its own name.
pub trait Placed: Content {
    /// Only key at which the content is valid, and the node that signs it.
    fn place(&self) -> (Key, &Node);
}

/// Writes a body.
///
/// # Errors
/// The content exceeds a bound.
pub fn encode<T: Content>(content: &T) -> Result<Vec<u8>, Malformed> {
    content.check()?;
    let bytes = serde_json::to_vec(content)
        .map_err(|e| Malformed::new(format!("a {} cannot be written: {e}", T::KIND)))?;
    bounded::<T>(&bytes)?;
    Ok(bytes)
}

/// Reads a body. Only [`super::envelope::Envelope`] calls it, after a verification.
///
/// # Errors
/// The bytes are not such a body, or exceed a bound.
pub(super) fn decode<T: Content>(bytes: &[u8]) -> Result<T, Malformed> {
    bounded::<T>(bytes)?;
    let content: T = serde_json::from_slice(bytes).map_err(|e| {
        Malformed::new(format!(
            "the body is no {}: {}",
            T::KIND,
            super::shown(&e.to_string())
        ))
    })?;
    content.check()?;
    Ok(content)
}

fn bounded<T: Content>(bytes: &[u8]) -> Result<(), Malformed> {
    if bytes.len() <= MOST {
        return Ok(());
    }
    let (kind, size) = (T::KIND, bytes.len());
    Err(Malformed::new(format!(
        "a {kind} of {size} bytes is too large: {MOST} are allowed"
    )))
}

/// Checks a number against the largest allowed one.
pub(super) fn at_most(what: &str, number: usize, most: usize) -> Result<(), Malformed> {
    if number <= most {
        return Ok(());
    }
    Err(Malformed::new(format!(
        "{number} {what} are too many: {most} are allowed"
    )))
}
