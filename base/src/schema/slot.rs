//! Lines that `again-fleet slot --json` prints, one for each change.

use serde::{Deserialize, Serialize};

/// State of a run that asks for a slot, in words that follow "the run".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// The run waits.
    Waits(String),
    /// The run starts, with a slot or without one.
    Starts(String),
    /// The run does not start, for this reason.
    Refused(String),
}

impl SlotState {
    /// Line for a person, without the name of a program.
    pub fn sentence(&self) -> String {
        match self {
            SlotState::Waits(words) | SlotState::Starts(words) => format!("the run {words}"),
            SlotState::Refused(why) => format!("error: {why}"),
        }
    }

    /// Line for a program.
    pub fn json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}
