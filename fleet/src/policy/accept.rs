//! Signers that may start runs on this node. There is no default: a signer that is not listed is
//! rejected.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::identity::certificate::is_extension;
use crate::wire::name::Node;
use crate::wire::{Malformed, shown};

/// Trusted extensions of a certificate: Puppet's short name, or else the object identifier, and the
/// value.
pub type Extensions = BTreeMap<String, String>;

/// Pattern for certnames, in which `*` matches any characters except dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl FromStr for Pattern {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        // The text has to be a valid certname once each star is replaced.
        match text.replace('*', "x").parse::<Node>() {
            Ok(_) => Ok(Pattern(text.to_owned())),
            Err(_) => Err(Malformed::new(format!(
                "'{}' is no certname, with or without '*'",
                shown(text)
            ))),
        }
    }
}

impl Pattern {
    /// Whether a certname matches.
    pub fn is_met_by(&self, node: &Node) -> bool {
        let (patterns, labels) = (self.0.split('.'), node.as_str().split('.'));
        patterns.clone().count() == labels.clone().count()
            && patterns
                .zip(labels)
                .all(|(pattern, label)| is_like(pattern, label))
    }
}

/// Whether a text without dots matches a pattern, in which `*` matches any characters, or none.
pub(super) fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    // The earliest match of a part between two stars leaves the most text for the next parts.
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Group of signers: `web*.example.com`, or `pp_role=frontend`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// Signers whose certname matches.
    Named(Pattern),
    /// Signers with this trusted extension in their certificate, which the CA signed, and this
    /// value.
    With(String, String),
}

impl FromStr for Who {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        match text.split_once('=') {
            Some((extension, _)) if !is_extension(extension) => Err(Malformed::new(format!(
                "'{}' is no trusted extension of Puppet's",
                shown(extension)
            ))),
            Some((extension, value)) => Ok(Who::With(extension.to_owned(), value.to_owned())),
            None => Ok(Who::Named(text.parse()?)),
        }
    }
}

impl Who {
    /// Whether a signer belongs to the group.
    pub fn is_met_by(&self, signer: &Node, extensions: &Extensions) -> bool {
        match self {
            Who::Named(pattern) => pattern.is_met_by(signer),
            Who::With(extension, value) => extensions.get(extension) == Some(value),
        }
    }
}

/// Signers whose triggers a node accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accept {
    /// Signers that may send on their own behalf.
    pub from: Vec<Who>,
    /// Signers that may send on behalf of other nodes, and the nodes.
    pub on_behalf: Vec<(Who, Vec<Pattern>)>,
}

/// Reason why a signer is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAccepted(String);

impl fmt::Display for NotAccepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Accept {
    /// Checks whether a signer may send to this node, `me`, on its own behalf or on that of another
    /// node. The node itself matches only a certname without `*`, and no extension.
    ///
    /// # Errors
    /// The signer is not accepted; the message names the setting that would have to list it.
    pub fn judge(
        &self,
        me: &Node,
        signer: &Node,
        extensions: &Extensions,
        for_node: Option<&Node>,
    ) -> Result<(), NotAccepted> {
        let is_one = |who: &Who| match who {
            Who::Named(pattern) if signer == me => pattern.0 == me.as_str(),
            Who::With(..) if signer == me => false,
            who => who.is_met_by(signer, extensions),
        };
        let Some(other) = for_node else {
            if self.from.iter().any(is_one) {
                return Ok(());
            }
            let this = if signer == me {
                "the certname of this node, "
            } else {
                ""
            };
            return Err(NotAccepted(format!("accept does not list {this}{signer}")));
        };
        let speaks_for = |(who, nodes): &(Who, Vec<Pattern>)| {
            is_one(who) && nodes.iter().any(|pattern| pattern.is_met_by(other))
        };
        if self.on_behalf.iter().any(speaks_for) {
            return Ok(());
        }
        Err(NotAccepted(format!(
            "accept_for does not let {signer} speak for {other}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(text: &str) -> Node {
        text.parse().expect("a certname")
    }

    fn judged(
        accept: &Accept,
        who: &str,
        extensions: &[(&str, &str)],
        other: Option<&str>,
    ) -> Result<(), String> {
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let extensions = extensions.iter().map(text).collect();
        let other = other.map(node);
        accept
            .judge(&node("lb0"), &node(who), &extensions, other.as_ref())
            .map_err(|e| e.to_string())
    }

    fn is_met(pattern: &str, name: &str) -> bool {
        pattern
            .parse::<Pattern>()
            .expect("a pattern")
            .is_met_by(&node(name))
    }

    #[test]
    fn a_star_stops_at_a_dot() {
        for (pattern, name) in [
            ("web1.example.com", "web1.example.com"),
            ("web*.example.com", "web12.example.com"),
            ("web*.example.com", "web.example.com"),
            ("*.example.com", "a.example.com"),
            ("*.*.com", "a.b.com"),
            ("w*b*1", "wxbyb1"),
            ("*", "web1"),
            ("a**b", "ab"),
        ] {
            assert!(is_met(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("web*.example.com", "web1.evil.example.com"),
            ("web*.example.com", "web1.example.com.evil.org"),
            ("web*", "web1.example.com"),
            ("*", "a.b"),
            ("*.example.com", "example.com"),
            ("web1", "web11"),
            ("web1", "aweb1"),
            ("a*a", "a"),
            ("w*b*1", "w1b"),
        ] {
            assert!(!is_met(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in [
            "",
            "Web*",
            "a/b",
            "caf\u{e9}",
            "a\nb",
            // Nothing that a CA of Puppet's vouches for.
            "=x",
            "pp_rolle=x",
            "1.3.6.1.4.1.34380.1.1.13=x",
        ] {
            assert!(text.parse::<Who>().is_err(), "{text:?}");
        }
        assert_eq!(
            "pp_role=a=b".parse(),
            Ok(Who::With("pp_role".to_owned(), "a=b".to_owned()))
        );
    }

    #[test]
    fn nobody_is_accepted_by_default() {
        let judged = judged(&Accept::default(), "web1", &[], None);
        assert_eq!(judged, Err("accept does not list web1".to_owned()));
    }

    #[test]
    fn by_certname_or_by_extension() {
        let accept = Accept {
            from: vec![
                "lb*".parse().expect("a pattern"),
                "pp_role=web".parse().expect("an extension"),
            ],
            ..Accept::default()
        };
        let judged = |who, extensions: &[_]| judged(&accept, who, extensions, None);
        assert!(judged("lb1", &[]).is_ok());
        assert!(judged("x", &[("pp_role", "web")]).is_ok());
        for other in [[("pp_role", "webs")], [("pp_zone", "web")]] {
            assert!(judged("x", &other).is_err());
        }
    }

    #[test]
    fn node_itself_is_accepted_only_where_its_name_is_written_out() {
        let accept = |who: &str| Accept {
            from: vec![who.parse().expect("somebody")],
            on_behalf: vec![(
                who.parse().expect("somebody"),
                vec!["web1".parse().expect("a pattern")],
            )],
        };
        let extensions = [("pp_role", "lb")];
        for (who, is_accepted) in [
            ("*", false),
            ("lb*", false),
            ("pp_role=lb", false),
            ("lb0", true),
        ] {
            for other in [None, Some("web1")] {
                let judged = judged(&accept(who), "lb0", &extensions, other);
                assert_eq!(judged.is_ok(), is_accepted, "{who}: {judged:?}");
            }
        }
        assert_eq!(
            judged(&accept("*"), "lb0", &[], None),
            Err("accept does not list the certname of this node, lb0".to_owned())
        );
    }

    /// To be listened to is one thing, to speak for others another.
    #[test]
    fn who_speaks_for_others_is_listed_with_them() {
        let accept = Accept {
            from: vec!["web*".parse().expect("a pattern")],
            on_behalf: vec![(
                "puppet".parse().expect("a pattern"),
                vec!["web*".parse().expect("a pattern")],
            )],
        };
        let judge = |who, other| judged(&accept, who, &[], other);
        assert_eq!(judge("puppet", Some("web1")), Ok(()));
        assert_eq!(judge("web1", None), Ok(()));
        assert!(judge("puppet", None).is_err());
        assert_eq!(
            judge("puppet", Some("db1")),
            Err("accept_for does not let puppet speak for db1".to_owned())
        );
        assert!(judge("web2", Some("web1")).is_err());
    }

    proptest! {
        /// A pattern without a star means one name.
        #[test]
        fn a_plain_name_means_itself(one in "[a-c.]{1,6}", other in "[a-c.]{1,6}") {
            prop_assert_eq!(is_met(&one, &other), one == other);
        }

        /// The same as one who tries everything.
        #[test]
        fn stars_are_tried_as_they_should(pattern in "[ab*.]{1,7}", name in "[ab.]{1,7}") {
            fn slow(pattern: &[u8], text: &[u8]) -> bool {
                match (pattern.split_first(), text.split_first()) {
                    (None, None) => true,
                    (Some((b'*', rest)), _) => {
                        slow(rest, text) || text.split_first().is_some_and(|(c, left)| *c != b'.' && slow(pattern, left))
                    }
                    (Some((p, rest)), Some((c, left))) => p == c && slow(rest, left),
                    _ => false,
                }
            }
            prop_assert_eq!(is_met(&pattern, &name), slow(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
