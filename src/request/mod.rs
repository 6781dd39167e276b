//! A request, from the process that makes it to the message that it prints: observe ▸ judge ▸
//! accept, by a waiter or by a converge driver ▸ record and print.
#![forbid(unsafe_code)]

pub mod asked;
pub mod case;
pub mod driver;
mod line;
mod manifest;
pub mod observe;
pub mod order;
pub mod place;
pub mod triggered;
pub mod waiter;

use anyhow::Result;

use asked::{Answer, Request};
use observe::{observe, parent};

/// Makes a request.
///
/// # Errors
/// The failure; no timer was set then, and no driver has the request.
pub fn make(request: &Request<'_>) -> Result<Answer> {
    let seen = observe(parent(), request)?;
    // A driver above runs its own command again; a request with another command goes to a waiter.
    if let Some(driver) = driver::above(request, &seen) {
        return driver::take(request, &seen, &driver);
    }
    match &seen.plan {
        Ok(plan) => waiter::take(request, &seen, plan),
        // Without a target, the refusal cannot be recorded.
        Err(refusal) => Ok(Answer {
            line: format!("again: {refusal}"),
            exit: request.exit(refusal),
        }),
    }
}
