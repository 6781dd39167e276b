//! Origin of a run that other nodes requested: what again-fleet says of it, and what `again`
//! stores.
//!
//! again-fleet passes a [`Word`] to `again run --origin`, which puts it on record with the timer;
//! it becomes part of the lineage of the run. `again` remembers the numbers of triggers as long as
//! they can be handed over: a number that is on record already requests nothing a second time, and
//! that is a success. With `--origin`, `again` exits with 0 if everything in the word is on record,
//! and with another status if nothing is; its line of output names the cause.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::name::{Id, Name, Node};
use super::{Malformed, shown};
use crate::model::{Boottime, Span, Walltime};

/// Version of a [`Word`].
const VERSION: u32 = 1;
/// Longest word, in bytes: the kernel accepts arguments of 128 KiB each (execve(2),
/// MAX_ARG_STRLEN), including the NUL.
pub const LONGEST: usize = (128 << 10) - 1;
/// Most origins that are stored for a run.
pub const MOST_ORIGINS: usize = 8;
/// Longest path from an origin, in nodes.
pub const MOST_HOPS: usize = 20;
/// Most values that are handed over together, and so most triggers in a word: it fits into one
/// argument of a program.
pub const MOST_TOGETHER: usize = 32;
/// Most triggers that may wait in one timer.
const MOST_WAITING: usize = 1024;
/// Most words that one timer stores separately; [`Taken::add`] joins the oldest.
const MOST_TAKEN: usize = 16;
/// Longest id of a job, in bytes: the agent sends it to the server with each request of its run.
/// The path of one origin is included even if it makes the id longer.
const LONGEST_JOB: usize = 2000;
/// Widest jitter, in milliseconds: a trigger lives for a day at most.
const WIDEST: u64 = 86_400_000;

crate::model::shown_words! {
    /// Cause of a story.
    pub enum Cause {
        /// A resource was refreshed in a run of Puppet's.
        Refresh = "refresh",
        /// A report requested it.
        Kick = "kick",
        /// A person requested it.
        Person = "person",
        /// An event in a run that no other node requested matched a rule.
        Event = "event",
        /// A lock has another holder.
        Lock = "lock",
    }
}

/// Origin of a story, and the path from there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Id of the origin.
    pub id: Id,
    /// Cause of the story.
    pub cause: Cause,
    /// Nodes that have sent a trigger since: the node of the origin first, the sender of this
    /// trigger last. Their number is that of the hops.
    pub path: Vec<Node>,
}

/// Sender, name and number that identify a trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// Id of the trigger in messages, results and stories.
    pub id: Id,
    /// Node that signed the trigger.
    pub sender: Node,
    /// Name of the trigger.
    pub name: Name,
    /// Number of the trigger, which increases with each trigger of this sender and name.
    pub number: u64,
    /// Time until which the number has to be remembered.
    pub until: Walltime,
}

/// Origins of a timer or a run, and the triggers whose job it does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// Origins, in order of their ids.
    #[serde(default)]
    pub origins: Vec<Origin>,
    /// Triggers whose job the run does.
    #[serde(default)]
    pub triggers: Vec<Trigger>,
}

/// Lineage as `again` shows it: its triggers without the time until which their numbers are
/// remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origins {
    /// Origins, in order of their ids.
    pub origins: Vec<Origin>,
    /// Triggers whose job the run does.
    pub triggers: Vec<Asked>,
}

/// Trigger of [`Origins`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Id of the trigger.
    pub id: Id,
    /// Node that signed the trigger.
    pub sender: Node,
    /// Name of the trigger.
    pub name: Name,
    /// Number of the trigger.
    pub number: u64,
}

/// Triggers that were accepted together, until a run does their job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Time from which on a run that starts carries them.
    pub from: Boottime,
    /// Time from which on a run that starts does the job of all of them. Later than `from` if
    /// several words have been joined.
    pub ready: Boottime,
    /// Origins and triggers.
    pub lineage: Lineage,
}

/// Triggers that were accepted together, as again-fleet passes them to `again run --origin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    version: u32,
    /// Origins, each with the nodes that it passed, which are its hops.
    pub origins: Vec<Origin>,
    /// Widest jitter in milliseconds.
    jitter: u64,
    /// Triggers that were accepted together.
    pub triggers: Vec<Trigger>,
}

/// Version field of a [`Word`] of any version.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Word {
    /// Word with these triggers and the widest jitter, which replaces `--jitter` because that has
    /// whole seconds only.
    pub fn new(origins: Vec<Origin>, jitter: Span, triggers: Vec<Trigger>) -> Self {
        Word {
            version: VERSION,
            origins,
            jitter: jitter.millis(),
            triggers,
        }
    }

    /// Word as an argument: JSON.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("plain text")
    }

    /// Reads a word.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        // A newer version may have other fields.
        let Version { version } = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if version != VERSION {
            return Err(format!(
                "its version is {version}, and this program reads {VERSION}"
            ));
        }
        let word: Word = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let counts = [
            ("origins", word.origins.len(), MOST_ORIGINS),
            ("triggers", word.triggers.len(), MOST_TOGETHER),
        ];
        let ways = word.origins.iter().map(Origin::hops);
        let hops = ways.map(|hops| ("nodes of a way", hops, MOST_HOPS));
        for (what, count, most) in counts.into_iter().chain(hops) {
            if count == 0 || count > most {
                return Err(format!("it has {count} {what}: 1 to {most} are allowed"));
            }
        }
        if word.jitter > WIDEST {
            return Err(format!("its jitter is longer than {WIDEST} ms"));
        }
        Ok(word)
    }

    /// Widest jitter.
    pub fn jitter(&self) -> Span {
        Span::from_nanos(self.jitter.saturating_mul(1_000_000))
    }

    /// Lineage with all origins of the word and these triggers.
    pub fn lineage(&self, triggers: Vec<Trigger>) -> Lineage {
        Lineage {
            origins: merged(None, &self.origins),
            triggers,
        }
    }
}

/// All these origins, each once, with its longest known path, so that a long path is not shortened.
/// Of more than [`MOST_ORIGINS`], those with the fewest hops stay, so that a loop of triggers
/// displaces no other origin; `first` always stays.
pub fn merged<'a>(first: Option<&Id>, all: impl IntoIterator<Item = &'a Origin>) -> Vec<Origin> {
    let mut origins = BTreeMap::<&Id, &Origin>::new();
    for origin in all {
        let known = origins.entry(&origin.id).or_insert(origin);
        if (origin.hops(), origin) > (known.hops(), *known) {
            *known = origin;
        }
    }
    let mut origins: Vec<Origin> = origins.into_values().cloned().collect();
    origins.sort_by_key(|origin| (Some(&origin.id) != first, origin.hops()));
    origins.truncate(MOST_ORIGINS);
    origins.sort();
    origins
}

/// Reads an origin from a part of the id of a job.
fn origin_of_job(text: &str) -> Result<Origin, Malformed> {
    let mut words = text.split('/');
    let id = words.next().unwrap_or_default().parse()?;
    let cause = words.next().unwrap_or_default();
    let known = Cause::ALL.iter().find(|one| one.kind() == cause);
    let cause = *known.ok_or_else(|| Malformed::new(format!("'{}' is no cause", shown(cause))))?;
    let path = words.map(str::parse).collect::<Result<_, _>>()?;
    Ok(Origin { id, cause, path })
}

/// Origins in the id of an agent's job (`--job-id`), as [`Lineage::job`] writes it; empty for any
/// other job.
///
/// # Errors
/// The id has this form, but an origin in it is invalid.
pub fn origins_of_job(job: &str) -> Result<Vec<Origin>, Malformed> {
    let mut parts = job.split("//");
    let is_ours = |token: &str| !token.is_empty() && token.bytes().all(|b| b.is_ascii_hexdigit());
    if !parts.next().is_some_and(is_ours) {
        return Ok(Vec::new());
    }
    let mut origins = parts.map(origin_of_job).collect::<Result<Vec<_>, _>>()?;
    origins.sort();
    Ok(origins)
}

impl Lineage {
    /// Whether it has neither origins nor triggers.
    pub fn is_empty(&self) -> bool {
        self.origins.is_empty() && self.triggers.is_empty()
    }

    /// Lineage to show; `None` if it is empty.
    pub fn shown(&self) -> Option<Origins> {
        let asked = |trigger: &Trigger| Asked {
            id: trigger.id.clone(),
            sender: trigger.sender.clone(),
            name: trigger.name.clone(),
            number: trigger.number,
        };
        (!self.is_empty()).then(|| Origins {
            origins: self.origins.clone(),
            triggers: self.triggers.iter().map(asked).collect(),
        })
    }

    /// Adds another lineage: each trigger once, and the origins as [`merged`] does.
    pub fn join(&mut self, other: Lineage) {
        for trigger in other.triggers {
            if !self.triggers.iter().any(|one| one.is(&trigger)) {
                self.triggers.push(trigger);
            }
        }
        self.origins = merged(None, self.origins.iter().chain(&other.origins));
    }

    /// Id of an agent's job (`--job-id`) of this lineage: `TOKEN//ID/CAUSE/NODE/NODE//ID/…`. It
    /// reaches the server in the report. If not all origins fit, those with the fewest hops are
    /// included. A certname has no slash.
    pub fn job(&self, token: &str) -> String {
        let mut job = token.to_owned();
        let mut origins: Vec<&Origin> = self.origins.iter().collect();
        origins.sort_by_key(|one| one.hops());
        for (n, Origin { id, cause, path }) in origins.into_iter().enumerate() {
            let way: Vec<&str> = path.iter().map(Node::as_str).collect();
            let way = way.join("/");
            if n == 0 || job.len() + way.len() + 64 <= LONGEST_JOB {
                job.push_str(&format!("//{id}/{cause}/{way}"));
            }
        }
        job
    }

    /// Description of the triggers for people; `None` if there are none.
    pub fn told(&self) -> Option<String> {
        match self.triggers.as_slice() {
            [] => None,
            [one] => Some(format!("trigger '{}' of {}", one.name, one.sender)),
            more => Some(format!("{} triggers", more.len())),
        }
    }
}

impl Origin {
    /// Number of hops, including that of the trigger.
    pub fn hops(&self) -> usize {
        self.path.len()
    }
}

impl Trigger {
    /// Whether both have the same sender and name.
    pub fn is_of(&self, other: &Trigger) -> bool {
        (&self.sender, &self.name) == (&other.sender, &other.name)
    }

    fn is(&self, other: &Trigger) -> bool {
        self.number == other.number && self.is_of(other)
    }
}

impl Taken {
    /// Sets both times to now, after a reboot.
    pub fn begin_anew(&mut self, now: Boottime) {
        (self.from, self.ready) = (now, now);
    }

    /// Adds triggers to those that wait in a timer. If there are too many words, the two oldest
    /// become one: a run carries both when it carries either, and does their job when it does that
    /// of both.
    ///
    /// # Errors
    /// A sentence: there are too many triggers.
    pub fn add(all: &mut Vec<Taken>, new: Taken) -> Result<(), String> {
        let triggers = |one: &Taken| one.lineage.triggers.len();
        let waiting: usize = all.iter().chain([&new]).map(triggers).sum();
        if waiting > MOST_WAITING {
            return Err(format!(
                "{waiting} triggers would wait for one run: {MOST_WAITING} may"
            ));
        }
        all.push(new);
        if all.len() > MOST_TAKEN {
            let first = all.remove(0);
            let next = &mut all[0];
            next.from = next.from.min(first.from);
            next.ready = next.ready.max(first.ready);
            next.lineage.join(first.lineage);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = r#"{"version":1,"origins":[{"id":"00000000000000000000000000000001","cause":"refresh","path":["web1"]}],"jitter":50,"triggers":[{"id":"00000000000000000000000000000007","sender":"web1","name":"again","number":1000000,"until":4900000}]}"#;

    fn node(text: &str) -> Node {
        text.parse().expect("a certname")
    }

    #[test]
    fn a_word_is_read_as_it_was_written() {
        let word = Word::parse(TEXT).expect("a word");
        assert_eq!(word.jitter(), Span::from_nanos(50_000_000));
        let lineage = word.lineage(word.triggers.clone());
        assert_eq!(lineage.origins[0].path, [node("web1")]);
        assert_eq!(word.text(), TEXT);
        let trigger = &lineage.triggers[0];
        assert_eq!(
            (trigger.number, trigger.until.millis()),
            (1_000_000, 4_900_000)
        );
        assert_eq!(lineage.told().as_deref(), Some("trigger 'again' of web1"));
    }

    #[test]
    fn a_job_tells_where_it_comes_from() {
        let origin = |id: u128, path: &[&str]| Origin {
            id: Id::from_bits(id),
            cause: Cause::Kick,
            path: path.iter().map(|text| node(text)).collect(),
        };
        let of = |origins| Lineage {
            origins,
            triggers: Vec::new(),
        };
        assert_eq!(of(vec![]).job("0a"), "0a");
        let both = of(vec![origin(1, &["web1", "lb1.test"]), origin(2, &["db1"])]);
        let text = "0a//00000000000000000000000000000002/kick/db1//00000000000000000000000000000001/kick/web1/lb1.test";
        assert_eq!(both.job("0a"), text);
        assert_eq!(origins_of_job(text), Ok(both.origins));
        // The shortest way is told, however long it is, and of the others what fits.
        let long = "x".repeat(253);
        let wide = [long.as_str(); 20];
        let job = of(vec![origin(1, &wide), origin(2, &wide)]).job("0a");
        assert_eq!(job.matches("//").count(), 1, "{job}");
        let job = of(vec![origin(1, &wide), origin(2, &wide[..3])]).job("0a");
        assert!(
            job.starts_with("0a//00000000000000000000000000000002/") && job.len() <= LONGEST_JOB
        );
    }

    /// All counts and lengths at their bounds.
    #[test]
    fn the_longest_word_is_one_argument() {
        let longest = node(&"\"".repeat(Node::MOST));
        let trigger = Trigger {
            sender: longest.clone(),
            name: "\\".repeat(Name::MOST).parse().expect("a name"),
            until: Walltime::from_millis(u64::MAX),
            ..trigger(u64::MAX)
        };
        let origin = Origin {
            id: Id::from_bits(u128::MAX),
            cause: Cause::Refresh,
            path: vec![longest; MOST_HOPS],
        };
        let word = Word::new(
            vec![origin; MOST_ORIGINS],
            Span::from_nanos(u64::MAX),
            vec![trigger; MOST_TOGETHER],
        );
        let length = word.text().len();
        assert!((LONGEST * 3 / 4..=LONGEST).contains(&length), "{length}");
    }

    /// Puppet's rule for certnames (`lib/puppet/ssl/base.rb`), and puppetserver's: see [`super::super::name`].
    #[test]
    fn sender_of_a_word_is_what_puppet_signs() {
        for (name, is_one) in [
            ("web1.example.com", true),
            ("a b", true),
            ("a/b", false),
            ("a*", false),
            ("Web1", false),
        ] {
            let text = TEXT.replace("\"web1\"", &format!("\"{name}\""));
            assert_eq!(Word::parse(&text).is_ok(), is_one, "{name}");
        }
    }

    #[test]
    fn what_breaks_a_bound_is_no_word() {
        let path = |n: usize| format!("[{}]", vec!["\"web1\""; n].join(","));
        let triggers = |n: usize| {
            let (_, one) = TEXT.split_once("\"triggers\":[").expect("there");
            let one = one.strip_suffix("]}").expect("its end");
            format!("\"triggers\":[{}]", vec![one; n].join(","))
        };
        let of = |from: &str, to: &str| {
            assert!(TEXT.contains(from), "{from}");
            Word::parse(&TEXT.replacen(from, to, 1))
        };
        assert!(of("[\"web1\"]", &path(20)).is_ok());
        assert!(of(&triggers(1), &triggers(32)).is_ok());
        for (from, to, why) in [
            ("\"version\":1", "\"version\":2".to_owned(), "version is 2"),
            ("[\"web1\"]", path(0), "0 nodes"),
            ("[\"web1\"]", path(21), "21 nodes"),
            (&triggers(1), triggers(0), "0 triggers"),
            (&triggers(1), triggers(33), "33 triggers"),
            ("\"jitter\":50", "\"jitter\":86400001".to_owned(), "jitter"),
            ("01\",\"cause\"", "0g\",\"cause\"".to_owned(), "is no id"),
            ("07\",\"sender\"", "7\",\"sender\"".to_owned(), "is no id"),
            ("\"refresh\"", "\"\"".to_owned(), "unknown variant"),
            (
                "\"sender\":\"web1\"",
                "\"sender\":\"w\\u00e9b\"".to_owned(),
                "is no certname",
            ),
            (
                "\"name\":\"again\"",
                "\"name\":\"a\\u001b\"".to_owned(),
                "control characters",
            ),
            (
                "\"number\":1000000",
                "\"number\":-1".to_owned(),
                "invalid value",
            ),
            ("\"origins\":", "\"others\":".to_owned(), "missing field"),
        ] {
            let refused = of(from, &to).expect_err(&to);
            assert!(refused.contains(why), "{to}: {refused}");
        }
        let long = format!("{TEXT}{}", " ".repeat(LONGEST));
        assert!(Word::parse(&long).expect_err("long").contains("longer"));
    }

    fn trigger(number: u64) -> Trigger {
        Trigger {
            id: Id::from_bits(number.into()),
            sender: node("n"),
            name: "x".parse().expect("a name"),
            number,
            until: Walltime::default(),
        }
    }

    fn lineages() -> impl Strategy<Value = Lineage> {
        let origin =
            (0..12_u8, prop::collection::vec(0..3_u8, 1..6)).prop_map(|(id, way)| Origin {
                id: Id::from_bits(id.into()),
                cause: Cause::Refresh,
                path: way.iter().map(|n| node(&format!("n{n}"))).collect(),
            });
        let trigger = (0..3_u8, 0..4_u64).prop_map(|(sender, number)| Trigger {
            sender: node(&format!("n{sender}")),
            ..trigger(number)
        });
        (
            prop::collection::vec(origin, 0..8),
            prop::collection::vec(trigger, 0..4),
        )
            .prop_map(|(origins, triggers)| {
                let mut lineage = Lineage::default();
                lineage.join(Lineage { origins, triggers });
                lineage
            })
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}", cut in 0..TEXT.len()) {
            let _ = Word::parse(&text);
            prop_assert!(Word::parse(&TEXT[..cut]).is_err());
        }

        #[test]
        fn joined_nothing_is_lost_but_the_longest_ways(a in lineages(), b in lineages()) {
            let mut both = a.clone();
            both.join(b.clone());
            let mut other = b.clone();
            other.join(a.clone());
            prop_assert_eq!(&both.origins, &other.origins);
            let mut again = both.clone();
            again.join(a.clone());
            // Of too many, one that went may come back by another way.
            prop_assert!(again == both || both.origins.len() == MOST_ORIGINS);
            prop_assert!(both.origins.is_sorted() && both.origins.len() <= MOST_ORIGINS);
            for trigger in a.triggers.iter().chain(&b.triggers) {
                prop_assert_eq!(both.triggers.iter().filter(|one| one.is(trigger)).count(), 1);
            }
            for origin in a.origins.iter().chain(&b.origins) {
                match both.origins.iter().find(|one| one.id == origin.id) {
                    Some(kept) => prop_assert!(kept.hops() >= origin.hops()),
                    None => {
                        prop_assert_eq!(both.origins.len(), MOST_ORIGINS);
                        prop_assert!(both.origins.iter().all(|one| one.hops() <= 5));
                    }
                }
            }
        }

        /// However many words come, a run carries what was ready for it, and does the job of nothing that was not.
        #[test]
        fn few_words_stand_for_many(readies in prop::collection::vec(0..100_u64, 1..60), start in 0..120_u64) {
            let mut all = Vec::new();
            for (n, ready) in readies.iter().enumerate() {
                let ready = Boottime::from_nanos(*ready);
                let trigger = trigger(n as u64);
                let lineage = Lineage { origins: Vec::new(), triggers: vec![trigger] };
                Taken::add(&mut all, Taken { from: ready, ready, lineage }).expect("room");
            }
            prop_assert!(all.len() <= MOST_TAKEN);
            let start = Boottime::from_nanos(start);
            let numbers = |has: fn(&Taken) -> Boottime| -> Vec<u64> {
                let those = all.iter().filter(|one| has(one) <= start);
                those.flat_map(|one| one.lineage.triggers.iter().map(|one| one.number)).collect()
            };
            let (carried, done) = (numbers(|one| one.from), numbers(|one| one.ready));
            for (n, ready) in readies.iter().enumerate() {
                let is_ready = Boottime::from_nanos(*ready) <= start;
                prop_assert!(!is_ready || carried.contains(&(n as u64)));
                prop_assert!(is_ready || !done.contains(&(n as u64)));
            }
        }

        #[test]
        fn too_many_triggers_are_refused_and_change_nothing(sizes in prop::collection::vec(1..32_usize, 40..80)) {
            let mut all = Vec::new();
            let mut number = 0;
            for size in sizes {
                let triggers = (0..size).map(|_| { number += 1; trigger(number) }).collect();
                let at = Boottime::default();
                let before = all.clone();
                if Taken::add(&mut all, Taken { from: at, ready: at, lineage: Lineage { origins: Vec::new(), triggers } }).is_err() {
                    prop_assert_eq!(&all, &before);
                }
                let waiting: usize = all.iter().map(|one: &Taken| one.lineage.triggers.len()).sum();
                prop_assert!(waiting <= MOST_WAITING);
            }
        }
    }
}
