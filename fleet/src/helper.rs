//! Output of a program, with limits of time and length.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use again_base::sys::pidfd::is_readable_by;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Standard output and exit status of a program. Its standard input and standard error are
/// /dev/null.
///
/// # Errors
/// The program cannot be started, does not end in time, or prints more than `most` bytes.
pub fn output(
    command: &mut Command,
    patience: Duration,
    most: usize,
) -> Result<(Vec<u8>, ExitStatus), String> {
    let until = Instant::now() + patience;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|e| format!("cannot be started: {e}"))?;
    let mut text = Vec::new();
    let mut read = |mut out: ChildStdout| {
        let mut more = [0; 4096];
        while text.len() <= most {
            if !is_readable_by(out.as_fd(), until).map_err(said)? {
                return Err(late(patience));
            }
            match out.read(&mut more).map_err(said)? {
                0 => return Ok(()),
                count => text.extend(&more[..count]),
            }
        }
        Err(format!("it said more than {most} bytes"))
    };
    let whole = child.stdout.take().map_or(Ok(()), &mut read);
    // The program may close its output and keep running.
    let whole =
        whole.and_then(
            |()| match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
                Ok(process) if !is_readable_by(process.as_fd(), until).map_err(said)? => {
                    Err(late(patience))
                }
                _ => Ok(()),
            },
        );
    if whole.is_err() {
        let _ = child.kill();
    }
    let ended = child.wait().map_err(said)?;
    whole.map(|()| (text, ended))
}

fn late(patience: Duration) -> String {
    format!("no answer within {} s", patience.as_secs())
}

fn said(e: io::Error) -> String {
    e.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_late_or_prints_too_much_is_ended() {
        let sh = |script: &str, patience, most| {
            let mut command = Command::new("/bin/sh");
            let patience = Duration::from_millis(patience);
            let done = output(command.args(["-c", script]), patience, most);
            done.map(|(text, ended)| (text, ended.code()))
        };
        let exit = (b"said\n".to_vec(), Some(3));
        assert_eq!(sh("echo said; exit 3", 60_000, 5), Ok(exit));
        let much = Err("it said more than 4 bytes".to_owned());
        assert_eq!(sh("echo said; exec sleep 60", 60_000, 4), much);
        let late = Err("no answer within 0 s".to_owned());
        assert_eq!(sh("exec sleep 60", 10, 4), late);
        assert_eq!(sh("exec >&-; exec sleep 60", 500, 4), late);
    }
}
