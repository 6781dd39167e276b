//! What the bodies of all kinds have in common: JSON, a kind with its version, and bounds that hold on both sides.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Malformed;
use super::key::Key;
use super::name::Node;

/// The longest body, in bytes. The largest that any kind's own bounds allow is smaller.
pub const MOST: usize = 128 << 10;

/// What a body can be.
pub trait Content: Serialize + DeserializeOwned {
    /// Its kind and version. What an older program would misread gets a new version; a field that it may pass over does not.
    const KIND: &'static str;

    /// Whether it keeps to its bounds.
    ///
    /// # Errors
    /// A sentence that says which bound it breaks.
    fn check(&self) -> Result<(), Malformed>;
}

/// What a node signs in its own name.
pub trait Placed: Content {
    /// The only key at which it counts, and the node.
    fn place(&self) -> (Key, &Node);
}

/// Writes a body.
///
/// # Errors
/// It breaks a bound.
pub fn encode<T: Content>(content: &T) -> Result<Vec<u8>, Malformed> {
    content.check()?;
    let bytes = serde_json::to_vec(content)
        .map_err(|e| Malformed::new(format!("a {} cannot be written: {e}", T::KIND)))?;
    bounded::<T>(&bytes)?;
    Ok(bytes)
}

/// Reads a body. Only an [`super::envelope::Envelope`] that was verified gives it away.
///
/// # Errors
/// It is no such body, or breaks a bound.
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

/// Checks a number against the largest that is allowed.
pub(super) fn at_most(what: &str, number: usize, most: usize) -> Result<(), Malformed> {
    if number <= most {
        return Ok(());
    }
    Err(Malformed::new(format!(
        "{number} {what} are too many: {most} are allowed"
    )))
}
