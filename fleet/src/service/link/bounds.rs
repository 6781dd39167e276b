//! Limits on what a service reads of the triggers that others write for its node.

use std::rc::Rc;

use crate::backend::shares::Bounds;
use crate::wire::key::{Key, Prefix};
use crate::wire::name::Namespace;
use crate::wire::quota::Amount;

/// Limit on what is read of the triggers of one sender. The rest stays in the backend until there
/// is room.
pub const OF_A_SENDER: Amount = Amount {
    bytes: 2 << 20,
    values: 256,
};
/// Largest number of bytes that are read of the triggers of all senders together.
const MOST_BYTES: usize = 64 << 20;

/// Limits on what is reported below a prefix, if there are any. Values that nobody would judge or
/// remove are not read.
pub(super) fn bounds(prefix: &Prefix<'_>, namespace: &Namespace) -> Option<Bounds> {
    let Prefix::To(_) = prefix else {
        return None;
    };
    let namespace = namespace.clone();
    let is_trigger = move |key: &str| matches!(Key::decode(key, &namespace), Ok(Key::To { name, .. }) if !name.is_of_a_rule());
    Some(Bounds {
        of_sender: OF_A_SENDER,
        most_bytes: MOST_BYTES,
        is_read: Rc::new(is_trigger),
    })
}
