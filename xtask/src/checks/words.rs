use super::{BASE, FLEET, HELPER, sources};

/// Whether a line of code compares the name of a backend as text.
fn compares_words(line: &str) -> bool {
    let words = ["\"nats\"", "\"etcd\""];
    let has = |operator: &str| {
        words.iter().any(|word| {
            line.contains(&format!("{operator} {word}"))
                || line.contains(&format!("{word} {operator}"))
        })
    };
    ["==", "!="].into_iter().any(has)
}

#[test]
fn facts_are_compared_as_types_and_not_as_words() {
    assert!(compares_words("if self.health.backend != \"nats\" {"));
    assert!(!compares_words("Nats = \"nats\","));
    for source in [BASE, HELPER, FLEET].into_iter().flat_map(sources) {
        let path = source.path.display();
        let found = source.text.lines().find(|line| compares_words(line));
        assert_eq!(
            found, None,
            "{path}: ask a type, such as Backend::supports_slots"
        );
    }
}

/// Words with which a comment should not begin, because they do not name what it documents.
const PRONOUNS: [&str; 13] = [
    "Who", "What", "Which", "Whose", "Where", "When", "How", "That", "Those", "They", "It", "Its",
    "Their",
];
/// Doc comments that may begin with one of them. The number may only fall.
const MOST_PRONOUNS: usize = 66;

fn begins_with_a_pronoun(line: &str) -> bool {
    let line = line.trim_start();
    let text = line.strip_prefix("/// ").or(line.strip_prefix("//! "));
    let word = text.and_then(|text| text.split(|c: char| !c.is_ascii_alphabetic()).next());
    word.is_some_and(|word| PRONOUNS.contains(&word))
}

#[test]
fn doc_comments_that_begin_with_a_pronoun_become_fewer() {
    assert!(begins_with_a_pronoun("    /// What."));
    assert!(!begins_with_a_pronoun("    /// Whatever it is."));
    let all = [BASE, HELPER, FLEET].into_iter().flat_map(sources);
    let count: usize = all
        .map(|source| {
            source
                .text
                .lines()
                .filter(|line| begins_with_a_pronoun(line))
                .count()
        })
        .sum();
    assert!(count <= MOST_PRONOUNS, "{count} of {MOST_PRONOUNS}");
}

/// Words from the project's old vocabulary, which readers would not understand.
const OLD_WORDS: [&str; 6] = [
    "root's side",
    "turned away",
    "telling",
    "parcel",
    "glance",
    "at 3 in the morning",
];

#[test]
fn words_that_nobody_else_knows_are_gone() {
    for source in [BASE, HELPER, FLEET].into_iter().flat_map(sources) {
        let (path, text) = (source.path.display(), source.text.to_lowercase());
        let found = OLD_WORDS.iter().find(|word| text.contains(**word));
        assert_eq!(found, None, "{path}: see doc/renames.md");
    }
}

#[test]
fn title_of_a_process_is_written_and_never_read() {
    for source in sources(HELPER) {
        let path = source.path.display();
        let reads = source.text.contains("strip_prefix(&format!(\"again: ");
        assert!(!reads, "{path}: read the waiter's record");
    }
}

/// Whether a file may verify signatures: those that read envelopes, and the CA, which handles
/// certificates.
fn verifies(path: &str) -> bool {
    path.starts_with("identity/") || path.starts_with("wire/")
}

#[test]
fn one_verifier_opens_values_without_the_backend_and_without_tokio() {
    for source in sources(FLEET) {
        let path = source.path.to_str().expect("plain");
        if path.starts_with("identity/") {
            for word in ["tokio", "crate::backend", "async "] {
                assert!(!source.text.contains(word), "{path} has '{word}'");
            }
        }
        let opens = source.text.contains("Envelope::parse");
        assert!(!opens || verifies(path), "{path}: ask identity::verifier");
    }
}
