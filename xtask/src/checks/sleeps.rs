use std::path::Path;

use super::sources;

/// Maximum number of fixed sleeps in the tests.
const ALLOWED: usize = 30;

/// Whether this line of code sleeps for a fixed time.
fn is_sleep(line: &str) -> bool {
    let paths = ["std::", "tokio::time::", "thread::"];
    let name = paths
        .iter()
        .fold(line, |line, path| line.strip_prefix(path).unwrap_or(line));
    name.starts_with("sleep(") && line.ends_with([';', '('])
}

/// Tests wait for conditions, with the functions of `tests/support` and `fleet/tests/support`. If
/// time itself is tested, a comment says why.
#[test]
fn tests_wait_for_conditions_and_not_for_time() {
    let mut sleeps = 0;
    for (root, support) in [("tests", "support"), ("fleet/tests", "support")] {
        let is_test = |path: &Path| !path.starts_with(support);
        for source in sources(root)
            .into_iter()
            .filter(|source| is_test(&source.path))
        {
            let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
            for (n, line) in lines.iter().enumerate() {
                if is_sleep(line) {
                    sleeps += 1;
                    let has_reason =
                        n > 0 && lines[n - 1].starts_with("// Time itself is tested: ");
                    let (path, n) = (source.path.display(), n + 1);
                    assert!(
                        has_reason,
                        "{root}/{path}:{n} sleeps, and no comment above says why"
                    );
                }
            }
        }
    }
    assert!(sleeps <= ALLOWED, "{sleeps} fixed sleeps, of {ALLOWED}");
}
