//! Limit of triggers to the shares of their nodes. `again` is asked only if a share may be
//! exceeded.

use again_base::model::Walltime;

use super::{helper, observation};
use crate::policy::judge::Verdict;
use crate::policy::share::{Limiter, Observation, Shares};
use crate::settings::Settings;
use crate::wire::trigger::Trigger;

/// Holds the triggers that would exceed the shares of their nodes, and counts the others.
pub fn limit(
    settings: &Settings,
    shares: &mut Shares,
    triggers: Vec<(&Trigger, &mut Verdict)>,
    now: Walltime,
) {
    let percent = settings.cap_share;
    if percent == 100 {
        return;
    }
    let all = triggers.iter().map(|(trigger, _)| *trigger);
    let needs = shares.needs_observation(all, percent, now);
    let observation = needs.then(|| observe(settings, shares));
    let mut limiter = Limiter::new(shares, observation, percent, now);
    for (trigger, verdict) in triggers {
        if let Err(why) = limiter.accept(trigger) {
            *verdict = Verdict::Held(why);
        }
    }
}

/// Asks `again` for its status, and then for its history. A run that starts in between waits in the
/// status and has started in the history, so that it counts twice rather than never. A run that has
/// left its timer and is not in the history yet is running in the status.
fn observe(settings: &Settings, shares: &Shares) -> Result<Observation, String> {
    let status = helper::status(settings)?;
    let history = helper::history(settings)?;
    observation::observation(&status, &history, shares.target()).map_err(|why| {
        let program = settings.helper.display();
        format!("{program} status --json: {why}")
    })
}
