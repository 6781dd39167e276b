//! systemd, as far as it cleans up after processes: units, and scopes to leave them for.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// A property of scopes since systemd 253 (its NEWS), and in what distributions have made
/// of 252: systemd.scope(5).
const OOM_POLICY: &str = "OOMPolicy";

/// Whether systemd is here to make a scope, by sd_booted(3).
pub fn systemd_is_here() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Whether this process is in the cgroup of a service or of a login session, so
/// that something may clean up after it.
pub fn is_in_a_unit() -> bool {
    std::fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| is_a_units_cgroup(&text))
}

/// Reads proc_pid_cgroup(5): systemd's own hierarchy is the unified one, or on older
/// systems the one named systemd. The others may have been set up by anybody.
pub fn is_a_units_cgroup(text: &str) -> bool {
    text.lines()
        .filter_map(|line| {
            line.strip_prefix("0::")
                .or_else(|| line.split_once(":name=systemd:").map(|(_, path)| path))
        })
        .flat_map(|path| path.split('/'))
        .any(|part| {
            Path::new(part)
                .extension()
                .is_some_and(|e| e == OsStr::new("service") || e == OsStr::new("scope"))
        })
}

/// The command line, up to the command, that runs it in a scope of its own: systemd-run(1).
/// With `policy` one process of the scope that is killed for want of memory does not take
/// the others along.
pub fn scope(unit: &str, description: &str, policy: bool) -> Vec<OsString> {
    let mut words = ["/usr/bin/systemd-run", "--scope", "--quiet", "--collect"]
        .map(OsString::from)
        .to_vec();
    if policy {
        words.push(format!("--property={OOM_POLICY}=continue").into());
    }
    let named = [
        format!("--unit={unit}"),
        format!("--description={description}"),
        "--".to_owned(),
    ];
    words.extend(named.map(OsString::from));
    words
}

/// Whether systemd-run(1) or systemd complains of a property that it does not know.
pub fn is_unknown_property(complaint: &str) -> bool {
    complaint.contains(OOM_POLICY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_a_units_cgroup() {
        assert!(is_a_units_cgroup("0::/system.slice/puppet-run.service\n"));
        assert!(is_a_units_cgroup(
            "0::/user.slice/user-0.slice/session-1.scope\n"
        ));
        assert!(is_a_units_cgroup(
            "4:cpu:/\n1:name=systemd:/system.slice/cron.service\n"
        ));
        assert!(!is_a_units_cgroup("0::/\n9:memory:/docker/x.scope\n"));
        assert!(!is_a_units_cgroup("0::/user.slice\n"));
        assert!(!is_a_units_cgroup(""));
    }
}
