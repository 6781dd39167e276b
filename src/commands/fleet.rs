//! `again fleet`: runs the second program, which carries triggers between nodes.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::unistd::execv;

use crate::cli::Fleet;
use again_base::delay;
use again_base::layout::complain;
use again_base::model::{Exit, Span, Walltime};
use again_base::schema::slot::SlotState;
use again_base::sys::attributes::{SignalState, set_signals};
use again_base::sys::file::{read_regular, read_settings};
use again_base::sys::spawn::own_program;
use again_base::toml;

/// Directories with the program, unless it is in the directory of this one: where the class
/// installs it, and where its package does.
const PLACES: [&str; 2] = ["/usr/local/bin", "/usr/bin"];

/// Settings file of the second program, unless its environment names another.
const SETTINGS: &str = "/etc/again-fleet.toml";
/// Minimum time that a run waits before it proceeds without a slot, as it would if that program
/// were installed and did not answer. A random time up to [`SPREAD`] is added, so that runs which
/// wait at the same time do not proceed together.
const PATIENCE: Span = Span::from_secs(10);
const SPREAD: Span = Span::from_secs(30);
/// Maximum age of the service's file: it is written every half minute.
const FRESH: Span = Span::from_secs(120);

/// Executes again-fleet with the same arguments.
///
/// # Errors
/// The program exists and cannot be executed.
pub fn main(args: &Fleet, signals: SignalState) -> Result<Exit> {
    set_signals(signals);
    let own = own_program();
    let beside = own.parent().unwrap_or(Path::new("/"));
    for directory in [beside].into_iter().chain(PLACES.map(Path::new)) {
        let program: PathBuf = directory.join("again-fleet");
        let words = [program.as_os_str()].into_iter();
        let words = words.chain(args.words.iter().map(|word| word.as_os_str()));
        let words: Vec<CString> = words
            .map(|word| CString::new(word.as_bytes()))
            .collect::<Result<_, _>>()?;
        let Err(error) = execv(&words[0], &words);
        if error != Errno::ENOENT {
            bail!("cannot execute {}: {}", program.display(), error.desc());
        }
    }
    if args.words.first().is_some_and(|word| word == "slot") && !requires_slots() {
        let wait = PATIENCE + delay::draw(SPREAD, &mut rand::rng());
        std::thread::sleep(Duration::from_nanos(wait.nanos()));
        let how = "goes ahead without a slot: again-fleet is not installed";
        report(args, &SlotState::Starts(how.to_owned()));
        return Ok(Exit::Success);
    }
    let why = "again-fleet is not installed: it is neither beside this program nor in /usr/local/bin or /usr/bin; install its package, or include common::again::fleet";
    report(args, &SlotState::Refused(why.to_owned()));
    Ok(Exit::Unavailable)
}

/// Prints what again-fleet would print.
fn report(args: &Fleet, state: &SlotState) {
    match args.words.iter().any(|word| word == "--json") {
        true => complain(&state.json()),
        false => complain(&format!("again: {}", state.sentence())),
    }
}

/// State of the service, in the numbers that it writes into its state directory, which the same
/// variable sets for both programs; empty if the file cannot be read.
pub fn numbers() -> BTreeMap<String, u64> {
    let directory = std::env::var_os("AGAIN_FLEET_STATE_DIR");
    let directory = directory.unwrap_or_else(|| "/var/lib/again-fleet".into());
    let path = Path::new(&directory).join("serve/counts.json");
    let text = read_regular(&path, 4096, nix::libc::O_NOFOLLOW).ok();
    let numbers = text.and_then(|text| serde_json::from_slice(&text).ok());
    numbers.unwrap_or_default()
}

/// Number of runs of this node that continue though their slot has ended with its lease.
pub fn slots_ended(now: Walltime) -> u64 {
    let numbers = numbers();
    let number = |key| numbers.get(key).copied().unwrap_or(0);
    let is_fresh = now.since(Walltime::from_millis(number("at"))) < FRESH;
    if is_fresh { number("ended") } else { 0 }
}

/// Whether the settings forbid a run without a slot, as far as they can be read.
fn requires_slots() -> bool {
    let named = std::env::var_os("AGAIN_FLEET_CONFIG").filter(|path| !path.is_empty());
    let path = named.unwrap_or_else(|| SETTINGS.into());
    let text = read_settings(Path::new(&path));
    text.is_ok_and(|text| toml::says(&text, "slots_required", "true"))
}
