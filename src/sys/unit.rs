//! systemd's cleanup of processes: units, and scopes that processes can move to.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use again_base::sys::process::{lossy, read_whole};

/// Property of scopes since systemd 253 (its NEWS), which some distributions have backported to
/// 252: systemd.scope(5).
const OOM_POLICY: &str = "OOMPolicy";

/// Whether systemd is running and can create a scope: sd_booted(3).
pub fn systemd_is_here() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Whether this process is in the cgroup of a service or of a login session, so that something may
/// clean up after it.
pub fn is_in_a_unit() -> bool {
    read_whole("/proc/self/cgroup").is_ok_and(|text| is_a_units_cgroup(&lossy(text)))
}

/// Whether proc_pid_cgroup(5) names a service or scope in systemd's own hierarchy: the unified one,
/// or on older systems the one named systemd. Anybody may have set up the others.
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

/// Command line, up to the command, that runs it in a scope of its own: systemd-run(1). With
/// `policy`, if one process of the scope is killed for lack of memory, the others continue.
pub fn scope(unit: &str, description: &str, policy: bool) -> Vec<OsString> {
    let mut words = ["/usr/bin/systemd-run", "--scope", "--quiet", "--collect"]
        .map(OsString::from)
        .to_vec();
    if policy {
        words.push(format!("--property={OOM_POLICY}=continue").into());
    }
    words.extend(limits().map(|limit| format!("--property={limit}").into()));
    let named = [
        format!("--unit={unit}"),
        format!("--description={description}"),
        "--".to_owned(),
    ];
    words.extend(named.map(OsString::from));
    words
}

/// Limits of our unit, as properties of systemd.resource-control(5), from the unified hierarchy.
fn limits() -> impl Iterator<Item = String> {
    let text = lossy(read_whole("/proc/self/cgroup").unwrap_or_default());
    let directory = own_unit(&text).map(|path| format!("/sys/fs/cgroup{path}"));
    LIMITS.iter().filter_map(move |(file, property)| {
        let path = Path::new(directory.as_ref()?).join(file);
        limit(property, &lossy(read_whole(path.to_str()?).ok()?))
    })
}

/// Files of a cgroup, and the properties that they come from.
const LIMITS: [(&str, &str); 7] = [
    ("memory.max", "MemoryMax"),
    ("memory.high", "MemoryHigh"),
    ("memory.swap.max", "MemorySwapMax"),
    ("pids.max", "TasksMax"),
    ("cpu.max", "CPUQuota"),
    ("cpu.weight", "CPUWeight"),
    ("io.weight", "IOWeight"),
];

/// Cgroup of the unit, which may have others below it.
fn own_unit(text: &str) -> Option<String> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let end = path.find(".service")? + ".service".len();
    Some(path[..end].to_owned())
}

/// Property from the text of its file; None if there is no limit.
fn limit(property: &str, text: &str) -> Option<String> {
    let mut words = text.split_ascii_whitespace();
    let value = words.next().filter(|value| *value != "max")?;
    Some(match property {
        "CPUQuota" => {
            let (quota, period): (u64, u64) = (value.parse().ok()?, words.next()?.parse().ok()?);
            format!("{property}={}%", (quota * 100).div_ceil(period.max(1)))
        }
        "IOWeight" => format!(
            "{property}={}",
            words.next().filter(|weight| *weight != "100")?
        ),
        "CPUWeight" if value == "100" => return None,
        _ => format!("{property}={value}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_a_unit_are_its_properties() {
        for (property, text, wanted) in [
            ("MemoryMax", "314572800\n", Some("MemoryMax=314572800")),
            ("MemoryMax", "max\n", None),
            ("CPUQuota", "50000 100000\n", Some("CPUQuota=50%")),
            ("CPUQuota", "max 100000\n", None),
            ("CPUWeight", "100\n", None),
            ("CPUWeight", "20\n", Some("CPUWeight=20")),
            ("IOWeight", "default 100\n", None),
            ("IOWeight", "default 50\n8:0 70\n", Some("IOWeight=50")),
            ("TasksMax", "", None),
        ] {
            assert_eq!(
                limit(property, text).as_deref(),
                wanted,
                "{property} {text}"
            );
        }
        let unit = own_unit("0::/system.slice/puppet-run.service/below\n");
        assert_eq!(unit.as_deref(), Some("/system.slice/puppet-run.service"));
        assert_eq!(own_unit("0::/user.slice\n"), None);
    }

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
