//! The entry point. Everything is in the library; this passes the arguments to it.
//!
//! The program has a C `main` of its own because Rust's start-up code ignores SIGPIPE before it
//! calls a Rust `main`, and a rerun must get the signal dispositions that its first run had.
#![no_main]

use std::ffi::{c_char, c_int};

/// Allocator that replaces musl's, which asks the kernel for each size of block anew: a hundred
/// system calls and as many fresh pages in a program that lives for two milliseconds.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Symbol that the C runtime calls.
// SAFETY: the name is the one the C runtime looks for, and the types are its own.
#[allow(unsafe_code, clippy::not_unsafe_ptr_arg_deref)]
#[unsafe(no_mangle)]
pub extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: argc and argv come unchanged from the C runtime.
    let arguments = unsafe { again_base::sys::start::arguments(argc, argv) };
    again::main(arguments)
}
