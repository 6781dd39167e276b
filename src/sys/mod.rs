//! The kernel, as this program alone needs it: one module per need. But for the entry point, unsafe code is here and in
//! `again_base::sys` only.

pub mod foreground;
pub mod idle;
pub mod memory;
pub mod mounts;
pub mod shutdown;
pub mod sleep;
pub mod title;
pub mod tree;
pub mod unit;
