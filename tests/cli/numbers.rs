//! `make bench` writes the tables and plots.

use again_test_support::repository;

#[test]
fn the_plots_show_their_series() {
    let read = |name: &str| {
        let path = repository().join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let page = read("doc/numbers/README.md");
    for plot in ["herd", "never-settles"] {
        for ending in ["svg", "csv"] {
            let named = format!("({plot}.{ending})");
            assert!(page.contains(&named), "{named}");
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
