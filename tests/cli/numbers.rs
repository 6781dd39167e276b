//! `make bench` writes the tables; the README has copies.

use again_rig::repository;

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
            "the README has a copy of what `make bench` has written"
        );
    }
    for plot in ["herd", "never-settles"] {
        for ending in ["svg", "csv"] {
            let named = format!("(doc/numbers/{plot}.{ending})");
            assert!(readme.contains(&named), "{named}");
        }
        let drawn = read(&format!("doc/numbers/{plot}.svg"));
        assert!(drawn.starts_with("<svg"), "{plot}");
        // Every line of the plot is a column of the series.
        let series = read(&format!("doc/numbers/{plot}.csv"));
        let mut rows = series.lines().map(|row| row.split(','));
        let names: Vec<&str> = rows.next().expect("names").skip(1).collect();
        for name in &names {
            assert!(
                drawn.contains(&format!("\n{name}\n")),
                "{plot} lacks {name}"
            );
        }
        assert!(rows.all(|row| row.count() == names.len() + 1), "{plot}");
    }
}
