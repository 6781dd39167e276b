use super::{BASE, FLEET, HELPER, sources};

/// Whether a line of code compares the name of a backend, or a reason in words, as text.
fn compares_words(line: &str) -> bool {
    let words = ["\"nats\"", "\"etcd\"", "\"its turn has come\""];
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
    assert!(compares_words("if self.health.engine != \"nats\" {"));
    assert!(!compares_words("Nats = \"nats\","));
    for source in [BASE, HELPER, FLEET].into_iter().flat_map(sources) {
        let path = source.path.display();
        let found = source.text.lines().find(|line| compares_words(line));
        assert_eq!(
            found, None,
            "{path}: ask a type, such as Engine::supports_slots"
        );
    }
}
