//! Exit statuses: the only table. A test checks the manual page against it.

/// Exit status of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, or refused for a reason that is not a failure.
    Success = 0,
    /// An error, or the cap under `on_cap = fail`; converge: the last run failed.
    Failure = 1,
    /// The command line or the settings are wrong.
    Usage = 2,
    /// status: nothing is pending and nothing runs.
    NothingPending = 3,
    /// fleet: again-fleet is not installed.
    Unavailable = 69,
    /// converge: not converged within the cap or the timeout.
    NotConverged = 75,
    /// converge: the command was found and cannot be executed.
    CannotExecute = 126,
    /// converge: there is no such command.
    NotFound = 127,
}

/// converge: base of the exit status 128 + n after signal n ended the driver or its last run.
pub const BY_SIGNAL: i32 = 128;
