//! Limits of the executor's source: no network, no backend, and no waiting for several events.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Text of a module of src, and of all modules below it, without their tests.
fn text(module: &str) -> String {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files: Vec<PathBuf> = vec![src.join(format!("{module}.rs"))];
    let mut directories = vec![src.join(module)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path)
            } else {
                files.push(path)
            }
        }
    }
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    let texts = texts.map(|text| {
        text.split("#[cfg(test)]")
            .next()
            .unwrap_or_default()
            .to_owned()
    });
    texts.collect()
}

/// Modules of this crate that a text names.
fn names(text: &str) -> BTreeSet<String> {
    let after = text.split("crate::").skip(1);
    let words = after.map(|rest| {
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .next()
            .unwrap_or_default()
    });
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn neither_an_backend_nor_its_runtime_is_in_reach() {
    let mut reached = BTreeSet::from(["executor".to_owned()]);
    let mut new = vec!["executor".to_owned()];
    while let Some(module) = new.pop() {
        let text = text(&module);
        assert!(!text.is_empty(), "there is no module {module}");
        for forbidden in [
            "tokio",
            "async_nats",
            "etcd_client",
            "futures_util",
            "TcpStream",
            "UdpSocket",
            "ToSocketAddrs",
        ] {
            assert!(
                !text.contains(forbidden),
                "{module}, which the executor uses, has {forbidden}"
            );
        }
        let more = names(&text)
            .into_iter()
            .filter(|name| reached.insert(name.clone()));
        new.extend(more.collect::<Vec<_>>());
    }
    let expected = [
        "executor", "handover", "helper", "identity", "policy", "puppet", "settings", "spool",
        "wire",
    ];
    assert_eq!(
        reached.iter().map(String::as_str).collect::<Vec<_>>(),
        expected
    );
}
