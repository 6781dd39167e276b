//! Kernel interfaces that this program alone needs, one module for each. Except for the entry
//! point, unsafe code is only here and in `again_base::sys`.

pub mod foreground;
pub mod idle;
pub mod memory;
pub mod mounts;
pub mod shutdown;
pub mod sleep;
pub mod title;
pub mod tree;
pub mod unit;
