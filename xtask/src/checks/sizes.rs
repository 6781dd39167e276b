use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{BASE, FLEET, HELPER, Source, sources};

/// Maximum number of lines of a function, from `fn` to its last brace.
const FUNCTION: usize = 80;
/// Maximum number of lines of a file, without its tests.
const FILE: usize = 600;

/// Finds each function in these tokens, with its name and number of lines.
fn functions(tokens: TokenStream, found: &mut Vec<(String, usize)>) {
    // Name and first line of the function whose body is expected.
    let mut begun: Option<(String, usize)> = None;
    let mut after_fn = None;
    for token in tokens {
        match token {
            TokenTree::Ident(word) if word == "fn" => after_fn = Some(word.span().start().line),
            TokenTree::Ident(name) => {
                if let Some(line) = after_fn.take() {
                    begun = Some((name.to_string(), line));
                }
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => begun = None,
            TokenTree::Group(group) => {
                // A type such as `fn(u8)` has no name.
                after_fn = None;
                if group.delimiter() == Delimiter::Brace
                    && let Some((name, first)) = begun.take()
                {
                    found.push((name, group.span_close().end().line + 1 - first));
                }
                functions(group.stream(), found);
            }
            _ => {}
        }
    }
}

fn functions_of(source: &Source) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let tokens = source.text.parse().expect("Rust");
    functions(tokens, &mut found);
    found
}

#[test]
fn functions_are_found_with_their_lines() {
    let text = "trait A { fn declared(&self); }\nconst F: fn(u8) -> u8 = one;\nfn one(x: u8) -> u8 { x }\n\
        impl A {\n    /// fn not { }\n    pub fn two(&self)\n    where\n        Self: Sized,\n    {\n        fn inner() {\n            let _ = \"}\";\n        }\n    }\n}\n";
    let source = Source::new(std::path::Path::new("a.rs"), text);
    let mut found = functions_of(&source);
    found.sort();
    let expected = [("inner", 3), ("one", 1), ("two", 8)];
    assert_eq!(
        found,
        expected.map(|(name, lines)| (name.to_owned(), lines))
    );
}

#[test]
fn every_function_reads_in_a_page_and_no_file_is_too_long() {
    let mut long = Vec::new();
    for root in [BASE, HELPER, FLEET] {
        for source in sources(root) {
            let path = format!("{root}/{}", source.path.display());
            let file = (
                "the file without tests".to_owned(),
                source.text.lines().count(),
            );
            let functions = functions_of(&source)
                .into_iter()
                .filter(|(_, lines)| *lines > FUNCTION);
            let files = std::iter::once(file).filter(|(_, lines)| *lines > FILE);
            long.extend(
                functions
                    .chain(files)
                    .map(|(name, lines)| format!("{path}: {name} has {lines} lines")),
            );
        }
    }
    assert!(
        long.is_empty(),
        "at most {FUNCTION} lines of a function, {FILE} of a file:\n{}",
        long.join("\n")
    );
}
