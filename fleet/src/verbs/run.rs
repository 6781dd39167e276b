//! The Puppet run that a command is called from, according to `again`, which identifies it by its
//! process, not by its environment.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use again_base::schema::origin::merged;
use again_base::schema::status::{Status, ThisRun};

use crate::helper::output;
use crate::wire::lineage::Lineage;

/// Time limit of `again status`.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest output of `again status`, in bytes; it is never that long.
const LONGEST: usize = 4 << 20;

/// Properties of a run according to `again`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run {
    /// Setting that makes the run change nothing, if there is one.
    pub noop: Option<String>,
    /// Origins of the run, if other nodes triggered it.
    pub lineage: Lineage,
    /// Whether reruns are disabled on this node.
    pub is_disabled: bool,
    /// Largest number of reruns that the cap allows and the number used, if the node has a target.
    pub cap: Option<(u32, u32)>,
}

/// The Puppet run that is an ancestor of this process; `None` if a person calls.
///
/// # Errors
/// A sentence with the reason why the run is not known.
pub fn above(helper: &Path) -> Result<Option<Run>, String> {
    let name = helper.display();
    let text = ask(helper).map_err(|e| {
        format!("it cannot be told where this run comes from: {name}: {e}; the program again has to be installed, and helper has to name it")
    })?;
    read(&text).map_err(|e| {
        format!("it cannot be told where this run comes from: {name} said what is no status: {e}")
    })
}

fn ask(helper: &Path) -> Result<Vec<u8>, String> {
    let mut command = Command::new(helper);
    command.args(["status", "--this-run", "--json"]);
    match output(&mut command, PATIENCE, LONGEST)? {
        (text, ended) if text.is_empty() => Err(format!("it said nothing, and ended with {ended}")),
        // The exit status is about other things.
        (text, _) => Ok(text),
    }
}

fn read(text: &[u8]) -> Result<Option<Run>, String> {
    let status: Status =
        serde_json::from_slice(text).map_err(|e| crate::wire::shown(&e.to_string()))?;
    let (is_disabled, target) = (status.disabled.is_some(), status.targets.first());
    let cap = target.map(|target| (target.cap.max_runs, target.cap.used));
    let run = |above: ThisRun| Run {
        is_disabled,
        cap,
        noop: above.noop,
        lineage: above.origin.map_or_else(Lineage::default, |past| {
            Lineage(merged(None, &past.origins))
        }),
    };
    Ok(status.this_run.map(run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_any_run_there_is_none() {
        assert_eq!(
            read(br#"{"schema":1,"this_run":null,"targets":[]}"#),
            Ok(None)
        );
    }

    #[test]
    fn a_run_that_nobody_else_asked_for_has_no_past() {
        for text in [
            r#"{"schema":1,"this_run":{"target":"x","chain":null,"run":1,"timer":null},"targets":[]}"#,
            r#"{"schema":1,"this_run":{"target":"x","noop":null,"origin":null},"targets":[]}"#,
        ] {
            assert_eq!(read(text.as_bytes()), Ok(Some(Run::default())));
        }
    }

    #[test]
    fn what_holds_it_back_is_told() {
        let text = r#"{"schema":1,"this_run":{"noop":null},"disabled":{"reason":"x"},"targets":[{"id":"y","cap":{"used":2,"max_runs":5,"frees_at":null}}]}"#;
        let run = read(text.as_bytes()).expect("a status").expect("a run");
        assert_eq!((run.is_disabled, run.cap), (true, Some((5, 2))));
    }

    #[test]
    fn the_past_of_a_run_is_in_order() {
        let origin = |id: u32, path: &str| {
            format!(r#"{{"id":"{id:032x}","cause":"refresh","path":[{path}]}}"#)
        };
        let text = format!(
            r#"{{"schema":1,"this_run":{{"noop":"--noop","origin":{{"origins":[{},{}],"triggers":[]}}}},"targets":[]}}"#,
            origin(2, r#""b""#),
            origin(1, r#""a","b""#),
        );
        let run = read(text.as_bytes()).expect("a status").expect("a run");
        assert_eq!(run.noop.as_deref(), Some("--noop"));
        let hops: Vec<usize> = run.lineage.0.iter().map(|origin| origin.hops()).collect();
        assert_eq!((hops, run.lineage.check()), (vec![2, 1], Ok(())));
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_a_run_without_a_past() {
        for text in [
            "",
            "again: error",
            "{}x",
            r#"{"schema":1,"this_run":{"origin":{"origins":[{"id":"x"}],"triggers":[]}},"targets":[]}"#,
            r#"{"schema":1,"this_run":{"origin":{}},"targets":[]}"#,
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_helper_that_is_missing_or_mute_is_an_error() {
        let error = above(Path::new("/nonexistent/again")).expect_err("missing");
        assert!(
            error.contains("/nonexistent/again") && error.contains("installed"),
            "{error}"
        );
        let error = above(Path::new("/bin/false")).expect_err("mute");
        assert!(
            error.contains("said nothing, and ended with exit status: 1"),
            "{error}"
        );
        let error = above(Path::new("/bin/echo")).expect_err("other words");
        assert!(error.contains("no status"), "{error}");
    }
}
