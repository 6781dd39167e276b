//! Network of booted machines: a bridge in a network namespace of its own. It is invisible from
//! outside, and ends with the process that holds it, which ends with its test program.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Bridge in a network namespace.
pub struct Net {
    pub(super) hub: Child,
}

/// Name and address of a machine on the network.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Certificate name and host name.
    pub name: &'a str,
    /// Address, in 10.77.0.0/24.
    pub address: &'a str,
}

impl<'a> Host<'a> {
    /// Returns the name of the bridge's port: the first part of the host's name.
    pub fn port(&self) -> &'a str {
        self.name.split('.').next().unwrap_or(self.name)
    }
}

impl Net {
    /// Creates a bridge without machines.
    pub fn new() -> Net {
        let script = "ip link add lab type bridge && ip link set lab up && echo up && exec cat";
        let mut hub = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv can be started");
        let mut line = String::new();
        let out = hub.stdout.take().expect("a pipe");
        let _ = BufReader::new(out).read_line(&mut line);
        assert_eq!(line, "up\n", "no bridge could be made");
        Net { hub }
    }

    /// Runs a shell script in the namespace of the bridge and its ports.
    #[track_caller]
    fn sh(&self, script: &str) {
        let done = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.hub.id()))
            .args(["sh", "-euc", script])
            .output()
            .expect("nsenter can be started");
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{script}: {error}");
    }

    /// Unplugs the cable of a machine, or plugs it in.
    #[track_caller]
    pub fn plug(&self, host: &Host<'_>, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        self.sh(&format!("ip link set {} {state}", host.port()));
    }

    /// Drops all packets to and from a machine silently, or lets them pass again.
    #[track_caller]
    pub fn pass(&self, host: &Host<'_>, passes: bool) {
        // The port's state in the spanning tree: disabled, or forwarding.
        let state = if passes { 3 } else { 0 };
        self.sh(&format!(
            "bridge link set dev {} state {state}",
            host.port()
        ));
    }

    /// Limits the traffic to a machine to this number of bytes a second; the rest is delayed.
    #[track_caller]
    pub fn slow(&self, host: &Host<'_>, bytes: u32) {
        self.sh(&format!(
            "tc qdisc add dev {} root tbf rate {bytes}bps burst 1600 latency 60s",
            host.port()
        ));
    }

    /// Ends [`Net::slow`].
    #[track_caller]
    pub fn fast(&self, host: &Host<'_>) {
        self.sh(&format!("tc qdisc del dev {} root", host.port()));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = (self.hub.kill(), self.hub.wait());
    }
}
