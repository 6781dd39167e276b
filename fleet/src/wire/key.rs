//! Keys of values: `again/v1/NAMESPACE/…`. A key names the node that its value belongs to, and no
//! name can change the structure of its key.

use super::Malformed;
use super::name::{self, Id, Name, Namespace, Node};

/// First segments of all keys of this version.
const ROOT: &str = "again/v1";

/// Key in the backend, below a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `to/TARGET/SENDER/NAME`: a trigger that is not accepted yet.
    To {
        /// Node that has to run Puppet.
        target: Node,
        /// Node that signed the trigger.
        sender: Node,
        /// Name of the trigger.
        name: Name,
    },
    /// `node/NODE`: the inventory of a node.
    Node(Node),
    /// `beat/NODE`: the beat of a node, for its slots and locks.
    Beat(Node),
    /// `result/SENDER/TARGET/NAME`: the last status of a trigger.
    Result {
        /// Node that sent the trigger.
        sender: Node,
        /// Node that signed this.
        target: Node,
        /// Name of the trigger.
        name: Name,
    },
    /// `story/NODE/ORIGIN/TRIGGER`: the same status, for all nodes. Only that node has rights below
    /// its name.
    Story {
        /// Node that signed this.
        node: Node,
        /// Id of the origin.
        origin: Id,
        /// Id of the trigger.
        trigger: Id,
    },
    /// `story/SENDER/ID/targets`: the targets of a rolling run that stops after failures.
    Targets {
        /// Node that sent the run's triggers, which signs this.
        sender: Node,
        /// Id of the triggers.
        id: Id,
    },
    /// `event/NODE/RUN/FIRST`: the events of a run there, beginning with this one.
    Event {
        /// Node of the run, which signs this.
        node: Node,
        /// Id of the run.
        run: Id,
        /// Number of the first event.
        first: u64,
    },
    /// `slot/GROUP/NODE`: a node that runs, or waits for a slot.
    Slot {
        /// Name of the group.
        group: Name,
        /// Node that runs or waits, which signs this.
        node: Node,
    },
    /// `lock/NAME`: the holder of a lock, which is the candidate that signs this.
    Lock(Name),
    /// `move/NAME/NODE`: the request of an operator to move a lock.
    Move {
        /// Name of the lock.
        lock: Name,
        /// Node of the operator, which signs this.
        node: Node,
    },
    /// `move/NAME/NODE/reset`: the reset of a lock's tokens by an operator.
    Reset {
        /// Name of the lock.
        lock: Name,
        /// Node of the operator, which signs this.
        node: Node,
    },
}

/// Last segment of a key of [`Key::Reset`]. It is below `move/` because all nodes have rights
/// there.
const RESET: &str = "reset";
/// Last segment of a key of [`Key::Targets`]. No id is equal to it.
const TARGETS: &str = "targets";

impl Key {
    /// Node that has to sign a value here, if it is always the same.
    pub fn signer(&self) -> Option<&Node> {
        Some(match self {
            Key::To { sender, .. } | Key::Targets { sender, .. } => sender,
            Key::Result { target, .. } => target,
            Key::Lock(_) => return None,
            Key::Node(node)
            | Key::Beat(node)
            | Key::Story { node, .. }
            | Key::Event { node, .. }
            | Key::Slot { node, .. }
            | Key::Move { node, .. }
            | Key::Reset { node, .. } => node,
        })
    }

    /// Key as text for the backend.
    pub fn encode(&self, namespace: &Namespace) -> String {
        match self {
            Key::To {
                target,
                sender,
                name,
            } => written(
                namespace,
                "to",
                &[target.as_str(), sender.as_str(), name.as_str()],
            ),
            Key::Node(node) => written(namespace, "node", &[node.as_str()]),
            Key::Beat(node) => written(namespace, "beat", &[node.as_str()]),
            Key::Result {
                sender,
                target,
                name,
            } => written(
                namespace,
                "result",
                &[sender.as_str(), target.as_str(), name.as_str()],
            ),
            Key::Story {
                node,
                origin,
                trigger,
            } => written(
                namespace,
                "story",
                &[node.as_str(), origin.as_str(), trigger.as_str()],
            ),
            Key::Targets { sender, id } => {
                written(namespace, "story", &[sender.as_str(), id.as_str(), TARGETS])
            }
            Key::Event { node, run, first } => written(
                namespace,
                "event",
                // Padded, so that keys sort in the order of the numbers.
                &[node.as_str(), run.as_str(), &format!("{first:020}")],
            ),
            Key::Slot { group, node } => {
                written(namespace, "slot", &[group.as_str(), node.as_str()])
            }
            Key::Lock(lock) => written(namespace, "lock", &[lock.as_str()]),
            Key::Move { lock, node } => written(namespace, "move", &[lock.as_str(), node.as_str()]),
            Key::Reset { lock, node } => {
                written(namespace, "move", &[lock.as_str(), node.as_str(), RESET])
            }
        }
    }

    /// Parses a key of this namespace.
    ///
    /// # Errors
    /// The key is of another namespace, or not in the form of [`Key::encode`].
    pub fn decode(text: &str, namespace: &Namespace) -> Result<Key, Malformed> {
        let wrong = || {
            Malformed::new(format!(
                "'{}' is no key of again/v1/{namespace}",
                super::shown(text)
            ))
        };
        let below = text.strip_prefix(&root(namespace)).ok_or_else(wrong)?;
        let mut segments = below.split('/');
        let section = segments.next().ok_or_else(wrong)?;
        let mut texts = Vec::with_capacity(3);
        for segment in segments.by_ref().take(4) {
            texts.push(name::decode(segment).ok_or_else(wrong)?);
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        Ok(match (section, texts.as_slice()) {
            ("to", [target, sender, name]) => Key::To {
                target: target.parse()?,
                sender: sender.parse()?,
                name: name.parse()?,
            },
            ("node", [node]) => Key::Node(node.parse()?),
            ("beat", [node]) => Key::Beat(node.parse()?),
            ("result", [sender, target, name]) => Key::Result {
                sender: sender.parse()?,
                target: target.parse()?,
                name: name.parse()?,
            },
            ("story", [sender, id, TARGETS]) => Key::Targets {
                sender: sender.parse()?,
                id: id.parse()?,
            },
            ("story", [node, origin, trigger]) => Key::Story {
                node: node.parse()?,
                origin: origin.parse()?,
                trigger: trigger.parse()?,
            },
            ("event", [node, run, first]) if first.len() == 20 => Key::Event {
                node: node.parse()?,
                run: run.parse()?,
                // A sign is not allowed, although the standard library accepts one.
                first: Some(first)
                    .filter(|first| first.bytes().all(|b| b.is_ascii_digit()))
                    .and_then(|first| first.parse().ok())
                    .ok_or_else(wrong)?,
            },
            ("slot", [group, node]) => Key::Slot {
                group: group.parse()?,
                node: node.parse()?,
            },
            ("lock", [lock]) => Key::Lock(lock.parse()?),
            ("move", [lock, node]) => Key::Move {
                lock: lock.parse()?,
                node: node.parse()?,
            },
            ("move", [lock, node, RESET]) => Key::Reset {
                lock: lock.parse()?,
                node: node.parse()?,
            },
            _ => return Err(wrong()),
        })
    }
}

/// Whether a key is a list of targets, in any namespace.
pub fn is_list_of_targets(key: &str) -> bool {
    let mut segments = key.split('/').skip(3);
    segments.next() == Some("story") && segments.nth(2) == Some(TARGETS)
}

/// Prefix of many keys: all that begin with the same segments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prefix<'a> {
    /// The triggers for a node.
    To(&'a Node),
    /// The results for a node that sent triggers.
    Results(&'a Node),
    /// The statuses of triggers, of all origins or of this one. For one origin, `*` is in place of
    /// the node.
    Stories(Option<&'a Id>),
    /// The statuses that one node published, of all origins or of this one.
    StoriesOf(&'a Node, Option<&'a Id>),
    /// The inventories of all nodes.
    Nodes,
    /// The events of runs on a node.
    Events(&'a Node),
    /// The events of runs on all nodes.
    AllEvents,
    /// The nodes that run or wait in a group.
    Slots(&'a Name),
    /// The nodes that run or wait in any group.
    AllSlots,
    /// The holders of all locks.
    Locks,
    /// The requests of operators for any lock.
    Moves,
    /// The requests of operators for this lock.
    MovesOf(&'a Name),
}

impl Prefix<'_> {
    /// Prefix as text: up to and with a slash, so that another node's keys never match.
    pub fn encode(&self, namespace: &Namespace) -> String {
        let mut text = match self {
            Prefix::To(node) => written(namespace, "to", &[node.as_str()]),
            Prefix::Results(node) => written(namespace, "result", &[node.as_str()]),
            Prefix::Stories(None) => written(namespace, "story", &[]),
            Prefix::Stories(Some(origin)) => format!("{}story/*/{origin}", root(namespace)),
            Prefix::StoriesOf(node, None) => written(namespace, "story", &[node.as_str()]),
            Prefix::StoriesOf(node, Some(origin)) => {
                written(namespace, "story", &[node.as_str(), origin.as_str()])
            }
            Prefix::Nodes => written(namespace, "node", &[]),
            Prefix::Events(node) => written(namespace, "event", &[node.as_str()]),
            Prefix::AllEvents => written(namespace, "event", &[]),
            Prefix::Slots(group) => written(namespace, "slot", &[group.as_str()]),
            Prefix::AllSlots => written(namespace, "slot", &[]),
            Prefix::Locks => written(namespace, "lock", &[]),
            Prefix::Moves => written(namespace, "move", &[]),
            Prefix::MovesOf(lock) => written(namespace, "move", &[lock.as_str()]),
        };
        text.push('/');
        text
    }
}

fn root(namespace: &Namespace) -> String {
    format!("{ROOT}/{namespace}/")
}

fn written(namespace: &Namespace, section: &str, segments: &[&str]) -> String {
    let mut text = root(namespace);
    text.push_str(section);
    for segment in segments {
        text.push('/');
        name::encode(segment, &mut text);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn node() -> impl Strategy<Value = Node> {
        "[ -)+-.0-@\\[-~]{1,12}".prop_map(|text| text.parse().expect("a certname"))
    }

    pub fn name() -> impl Strategy<Value = Name> {
        "\\PC{1,10}".prop_map(|text| text.parse().expect("a name"))
    }

    pub fn id() -> impl Strategy<Value = Id> {
        any::<u128>().prop_map(Id::from_bits)
    }

    fn key() -> impl Strategy<Value = Key> {
        prop_oneof![
            (node(), node(), name()).prop_map(|(target, sender, name)| Key::To {
                target,
                sender,
                name
            }),
            node().prop_map(Key::Node),
            node().prop_map(Key::Beat),
            (node(), node(), name()).prop_map(|(sender, target, name)| Key::Result {
                sender,
                target,
                name
            }),
            (node(), id(), id()).prop_map(|(node, origin, trigger)| Key::Story {
                node,
                origin,
                trigger
            }),
            (node(), id()).prop_map(|(sender, id)| Key::Targets { sender, id }),
            (node(), id(), any::<u64>()).prop_map(|(node, run, first)| Key::Event {
                node,
                run,
                first
            }),
            (name(), node()).prop_map(|(group, node)| Key::Slot { group, node }),
            name().prop_map(Key::Lock),
            (name(), node()).prop_map(|(lock, node)| Key::Move { lock, node }),
            (name(), node()).prop_map(|(lock, node)| Key::Reset { lock, node }),
        ]
    }

    fn namespace() -> Namespace {
        "test".parse().expect("a namespace")
    }

    #[test]
    fn keys_are_as_documented() {
        let node = |text: &str| text.parse::<Node>().expect("a certname");
        let key = Key::To {
            target: node("lb1.example.com"),
            sender: node("web1.example.com"),
            name: "refresh load balancers".parse().expect("a name"),
        };
        assert_eq!(
            key.encode(&namespace()),
            "again/v1/test/to/lb1=example=com/web1=example=com/refresh%20load%20balancers"
        );
        assert_eq!(key.signer(), Some(&node("web1.example.com")));
        let id = Id::from_bits(1);
        for (prefix, text) in [
            (Prefix::To(&node("lb1")), "to/lb1/".to_owned()),
            (Prefix::Stories(None), "story/".to_owned()),
            (Prefix::Stories(Some(&id)), format!("story/*/{id}/")),
            (
                Prefix::StoriesOf(&node("lb1.a"), Some(&id)),
                format!("story/lb1=a/{id}/"),
            ),
        ] {
            let text = format!("again/v1/test/{text}");
            assert_eq!(prefix.encode(&namespace()), text);
        }
    }

    #[test]
    fn what_is_no_key_of_ours_is_refused() {
        for text in [
            "",
            "again/v1/test/",
            "again/v1/test/to/a/b",
            "again/v1/test/to/a/b/c/d",
            "again/v1/test/to/a//c",
            "again/v1/test/to/a/../c",
            "again/v1/other/to/a/b/c",
            "again/v2/test/to/a/b/c",
            "again/v1/test/to/A/b/c",
            "again/v1/test/to/a%2Fb/b/c",
            "again/v1/test/to/a/b/c%00",
            "again/v1/test/story/a/1/2",
            "again/v1/test/story/a/1/targets",
            "again/v1/test/story/00000000000000000000000000000001/a/00000000000000000000000000000001",
            "again/v1/test/none/a",
            "again/v1/test/node/a/",
            "again/v1/test/event/a/00000000000000000000000000000001/1",
            "again/v1/test/event/a/00000000000000000000000000000001/+0000000000000000001",
            "again/v1/test/event/a/00000000000000000000000000000001/99999999999999999999",
        ] {
            assert!(Key::decode(text, &namespace()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_key_comes_back(key in key()) {
            let text = key.encode(&namespace());
            prop_assert_eq!(is_list_of_targets(&text), matches!(key, Key::Targets { .. }));
            prop_assert_eq!(Key::decode(&text, &namespace()), Ok(key));
        }

        /// Two different keys never meet in one place, and no key is below another.
        #[test]
        fn keys_stay_apart(one in key(), other in key()) {
            let (a, b) = (one.encode(&namespace()), other.encode(&namespace()));
            prop_assert_eq!(one == other, a == b);
            prop_assert!(!b.starts_with(&(a + "/")));
        }

        /// A prefix finds its own node's keys and no others.
        #[test]
        fn a_prefix_holds_its_own(target in node(), other in node(), sender in node(), name in name()) {
            let text = Key::To { target: target.clone(), sender, name }.encode(&namespace());
            prop_assert_eq!(text.starts_with(&Prefix::To(&other).encode(&namespace())), target == other);
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "(again/v1/test/)?(to|node|result|story|beat|event|slot|lock|move)?[a-z/%=A-F0-9.]{0,40}") {
            if let Ok(key) = Key::decode(&text, &namespace()) {
                prop_assert_eq!(key.encode(&namespace()), text);
            }
        }
    }
}
