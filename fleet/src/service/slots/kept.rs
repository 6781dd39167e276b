//! Text of what outlives a service: the groups, this node's entries in their queues, and its runs.

use again_base::model::Identity;

use super::{Group, Holder, Place, Run, Slots};
use crate::policy::replay::TriggerKey;
use crate::wire::name::decode;

impl Slots {
    /// Text with a line for each group, followed by a line for each of its runs.
    pub fn written(&self) -> String {
        let mut text = String::new();
        for (name, group) in &self.groups.0 {
            let Place {
                lease,
                first,
                revision,
            } = group.place.unwrap_or_default();
            let flags = [group.place.is_some(), group.had_turn, group.is_over];
            let [has_place, had_turn, is_over] = flags.map(u8::from);
            text += &format!(
                "group {} {lease} {first} {revision} {has_place} {had_turn} {is_over} {name}\n",
                group.limit
            );
            for run in &group.runs {
                let Run {
                    who,
                    file,
                    since,
                    why,
                } = run;
                text += &match who {
                    Holder::Process(Identity { pid, start }) => {
                        format!("run {pid} {start} {file} {since} {why}\n")
                    }
                    Holder::Trigger(which) => {
                        let TriggerKey {
                            sender,
                            name,
                            number,
                            id,
                        } = which;
                        let sender = sender.segment();
                        format!("trigger {since} {number} {id} {sender} {name}\n")
                    }
                };
            }
        }
        text
    }

    /// Reads the slots from this text. Lines that cannot be read are skipped.
    pub fn read(text: &str) -> Slots {
        let mut slots = Slots::default();
        for line in text.lines() {
            let _ = slots.read_line(line);
        }
        slots
    }

    fn read_line(&mut self, line: &str) -> Option<()> {
        let mut words = line.splitn(9, ' ');
        let kind = words.next()?;
        let is_group = kind == "group";
        if kind == "trigger" {
            let mut words = line.splitn(6, ' ').skip(1);
            let mut word = || words.next();
            let since = word()?.parse().ok()?;
            let which = TriggerKey {
                number: word()?.parse().ok()?,
                id: word()?.parse().ok()?,
                sender: decode(word()?)?.parse().ok()?,
                name: word()?.parse().ok()?,
            };
            let (_, group) = self.groups.0.last_mut()?;
            group.runs.push(Run::of(which, since));
            return Some(());
        }
        if !is_group {
            words = line.splitn(6, ' ');
            words.next();
        }
        let mut number = || words.next()?.parse::<i64>().ok();
        if is_group {
            let limit = u32::try_from(number()?).ok()?;
            let place = Place {
                lease: number()?,
                first: number()?.cast_unsigned(),
                revision: number()?.cast_unsigned(),
            };
            let group = Group {
                limit,
                place: Some(place).filter(|_| number() == Some(1)),
                had_turn: number()? == 1,
                is_over: number()? == 1,
                ..Group::default()
            };
            self.groups.insert(words.next()?.parse().ok()?, group);
        } else {
            let run = Run {
                who: Holder::Process(Identity {
                    pid: i32::try_from(number()?).ok()?,
                    start: number()?.cast_unsigned(),
                }),
                file: number()?.cast_unsigned(),
                since: number()?.cast_unsigned(),
                why: words.next()?.to_owned(),
            };
            let (_, group) = self.groups.0.last_mut()?;
            group.runs.push(run);
        }
        Some(())
    }
}
