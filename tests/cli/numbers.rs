//! `make bench` writes the tables; nobody else does.

use crate::rig::repository;

#[test]
fn the_readmes_tables_are_the_measured_ones() {
    let read = |name: &str| {
        let path = repository().join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let readme = read("README.md");
    for name in ["table", "herd", "size"] {
        let between = readme
            .split_once(&format!("<!-- {name} -->\n"))
            .and_then(|(_, rest)| rest.split_once(&format!("<!-- end of {name} -->")))
            .unwrap_or_else(|| panic!("the README has no marks for {name}"))
            .0;
        assert_eq!(
            between,
            read(&format!("doc/numbers/{name}.md")),
            "tests/tools/bench writes both"
        );
    }
    for plot in ["herd.svg", "never-settles.svg"] {
        assert!(readme.contains(&format!("(doc/numbers/{plot})")), "{plot}");
        assert!(read(&format!("doc/numbers/{plot}")).starts_with("<svg"));
    }
}
