use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{BASE, FLEET, HELPER, Source, sources};

/// Layers of src from the top: a file may use its own directory and the layers below, but not other
/// directories of its layer or of layers above.
const FLOORS: &[&[&str]] = &[
    &["main"],
    &["lib"],
    &["commands"],
    &["request", "converge"],
    &["waiter"],
    &["outcome"],
    &["state"],
    &["config"],
    &["puppet", "cli"],
    &["sys"],
    &["policy"],
];

/// Layers of base, which both programs use.
const BASE_FLOORS: &[&[&str]] = &[
    &["lib"],
    &["settings"],
    &["schema"],
    &["directory", "layout", "puppet", "toml"],
    &["sys"],
    &["delay"],
    &["model"],
];

/// Layers of `again-fleet`.
const FLEET_FLOORS: &[&[&str]] = &[
    &["main"],
    &["lib"],
    &["service", "executor", "verbs"],
    &["access", "ask", "cli", "seal"],
    &["step"],
    &["settings", "outbox", "spool"],
    &["policy", "handover", "helper", "puppet"],
    &["backend"],
    &["identity"],
    &["wire"],
];

/// Layers of the benchmarks.
const BENCH_FLOORS: &[&[&str]] = &[
    &["main"],
    &["fleet", "quiet"],
    &["chain", "crowd", "herd", "peers", "scale"],
    &["cost", "scene"],
    &["waiter", "exit", "size", "start"],
    &["runs", "plots"],
    &["numbers"],
];

/// Path of a module in src: `state::record` for state/record.rs, `state` for state/mod.rs, nothing
/// for lib.rs.
type Module = Vec<String>;

fn module(source: &Source) -> Module {
    let path = source.path.with_extension("");
    let mut parts: Module = path
        .iter()
        .map(|part| part.to_str().expect("plain").to_owned())
        .collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
        parts.pop();
    }
    parts
}

/// Modules that each module uses.
struct Arrows {
    from: BTreeMap<Module, BTreeSet<Module>>,
    /// Layer of each module.
    layers: BTreeMap<Module, String>,
}

/// Names and paths of modules in one file.
struct File<'a> {
    /// Name of the crate in paths from other crates.
    krate: &'a str,
    modules: &'a BTreeSet<Module>,
    this: Module,
    /// Modules by their names in this file.
    names: BTreeMap<String, Module>,
    uses: BTreeSet<Module>,
}

impl Arrows {
    fn new(krate: &str, sources: &[Source]) -> Arrows {
        let modules: BTreeSet<Module> = sources.iter().map(module).collect();
        let mut arrows = Arrows {
            from: BTreeMap::new(),
            layers: BTreeMap::new(),
        };
        for source in sources {
            let this = module(source);
            let mut file = File {
                krate,
                modules: &modules,
                names: children(&modules, &this),
                uses: BTreeSet::new(),
                this: this.clone(),
            };
            let tokens: TokenStream = source.text.parse().expect("Rust");
            // The first pass collects the names of imports, the second the uses of these names.
            file.read(tokens.clone(), &[]);
            file.uses.clear();
            file.read(tokens, &[]);
            file.uses.remove(&this);
            arrows
                .layers
                .insert(this.clone(), source.layer().to_owned());
            arrows.from.insert(this, file.uses);
        }
        arrows
    }

    /// Returns a path from a module back to itself, if there is one.
    fn circle(&self) -> Option<Vec<&Module>> {
        let mut done = BTreeSet::new();
        for start in self.from.keys() {
            let mut way = Vec::new();
            if let Some(circle) = self.walk(start, &mut way, &mut done) {
                return Some(circle);
            }
        }
        None
    }

    fn walk<'a>(
        &'a self,
        at: &'a Module,
        way: &mut Vec<&'a Module>,
        done: &mut BTreeSet<&'a Module>,
    ) -> Option<Vec<&'a Module>> {
        if let Some(from) = way.iter().position(|one| *one == at) {
            return Some([&way[from..], &[at]].concat());
        }
        if done.contains(at) {
            return None;
        }
        way.push(at);
        for next in &self.from[at] {
            if let Some(circle) = self.walk(next, way, done) {
                return Some(circle);
            }
        }
        way.pop();
        done.insert(at);
        None
    }

    /// Returns the uses that do not point to a lower layer.
    fn against(&self, floors: &[&[&str]]) -> Vec<String> {
        let floor = |module: &Module| {
            let layer = self.layers[module].as_str();
            floors.iter().position(|floor| floor.contains(&layer))
        };
        let homeless = self.layers.keys().filter(|one| floor(one).is_none());
        let mut found: Vec<String> = homeless
            .map(|one| format!("{} is on no floor", one.join("::")))
            .collect();
        for (from, uses) in &self.from {
            for to in uses {
                let inside = self.layers[from] == self.layers[to];
                if !inside && floor(from) >= floor(to) && floor(to).is_some() {
                    found.push(format!("{} uses {}", from.join("::"), to.join("::")));
                }
            }
        }
        found
    }
}

/// Returns the modules directly below one, by name.
fn children(modules: &BTreeSet<Module>, of: &Module) -> BTreeMap<String, Module> {
    let below = modules
        .iter()
        .filter(|module| module.len() == of.len() + 1 && module.starts_with(of));
    below
        .map(|module| (module.last().expect("a name").clone(), module.clone()))
        .collect()
}

impl File<'_> {
    /// Reads all paths in these tokens; `before` is the prefix of each in a group of imports.
    fn read(&mut self, tokens: TokenStream, before: &[String]) {
        let mut path: Vec<String> = before.to_vec();
        // Whether the path continues with the next word.
        let mut joined = !before.is_empty();
        let mut colons = 0;
        let mut renamed = false;
        for token in tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    joined = colons == 2;
                    continue;
                }
                TokenTree::Ident(word) if word == "as" && path.len() > 1 => renamed = true,
                TokenTree::Ident(word) if renamed => {
                    self.call(&path, &word.to_string());
                    renamed = false;
                }
                TokenTree::Ident(word) => {
                    if !joined {
                        self.take(&path);
                        path.clear();
                    }
                    path.push(word.to_string());
                    joined = false;
                }
                TokenTree::Group(group) if joined && group.delimiter() == Delimiter::Brace => {
                    self.read(group.stream(), &path);
                    path.clear();
                    joined = false;
                }
                TokenTree::Group(group) => {
                    self.take(&path);
                    path.clear();
                    joined = false;
                    self.read(group.stream(), &[]);
                }
                TokenTree::Punct(mark) if mark.as_char() == ',' => {
                    self.take(&path);
                    path = before.to_vec();
                    joined = !before.is_empty();
                }
                _ => {
                    self.take(&path);
                    path.clear();
                    joined = false;
                }
            }
            colons = 0;
        }
        self.take(&path);
    }

    /// Resolves a path to its module; the flag is true if the path names the module itself, not an
    /// item in it.
    fn resolve(&self, path: &[String]) -> Option<(Module, bool)> {
        let mut words = path.iter().peekable();
        let mut at = match words.peek()?.as_str() {
            "crate" => Module::new(),
            name if name == self.krate => Module::new(),
            "super" => self.this.clone(),
            "self" => self.this.clone(),
            name => self.names.get(name)?.clone(),
        };
        if words.peek().is_some_and(|word| *word != "super") {
            words.next();
        }
        while words.next_if(|word| *word == "super").is_some() {
            at.pop();
        }
        for word in words {
            let below = [at.as_slice(), std::slice::from_ref(word)].concat();
            if !self.modules.contains(&below) {
                return Some((at, word == "self"));
            }
            at = below;
        }
        Some((at, true))
    }

    fn take(&mut self, path: &[String]) {
        if path.len() < 2 {
            return;
        }
        if let Some((module, whole)) = self.resolve(path) {
            if let (true, Some(name)) = (whole, module.last()) {
                self.names.entry(name.clone()).or_insert(module.clone());
            }
            // A module that is only named is used through its items, elsewhere in the file.
            if !whole {
                self.uses.insert(module);
            }
        }
    }

    /// Adds a new name for a path in this file.
    fn call(&mut self, path: &[String], name: &str) {
        if let Some((module, true)) = self.resolve(path) {
            self.names.insert(name.to_owned(), module);
        } else {
            self.take(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Arrows {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::new(Path::new(path), text))
            .collect();
        Arrows::new("again", &sources)
    }

    fn used(arrows: &Arrows, by: &str) -> Vec<String> {
        let by: Module = by.split("::").map(str::to_owned).collect();
        arrows.from[&by].iter().map(|to| to.join("::")).collect()
    }

    const HOUSE: &[(&str, &str)] = &[
        (
            "lib.rs",
            "pub mod exit; mod state; mod sys;\npub const ONE: u8 = 1;",
        ),
        ("exit.rs", "pub struct Code;"),
        (
            "state/mod.rs",
            "pub mod record;\nmod store;\npub use store::Store;",
        ),
        (
            "state/store.rs",
            "use std::fs;\nuse super::record::{self, Record};\nfn a() -> Record { record::read(fs::read(\"crate::exit::Code\")) }",
        ),
        (
            "state/record.rs",
            "use crate::{exit::Code, sys::{self as system, clock::{now, Span}}};\n// use crate::state::store::Store;\nfn b() { println!(\"{}\", crate::ONE); system::wait::sleep(1) }\n#[cfg(test)]\nmod tests { use crate::state::Store; }",
        ),
        ("sys/mod.rs", "pub mod clock;\npub mod wait;"),
        (
            "sys/clock.rs",
            "use crate::exit;\nfn c() { let exit = exit::Code; }",
        ),
        ("sys/wait.rs", "pub fn sleep(_: u8) {}"),
    ];

    #[test]
    fn imports_are_found_in_all_their_forms() {
        let arrows = arrows(HOUSE);
        assert_eq!(used(&arrows, "state::store"), ["state::record"]);
        assert_eq!(
            used(&arrows, "state::record"),
            ["", "exit", "sys::clock", "sys::wait"]
        );
        assert_eq!(used(&arrows, "state"), ["state::store"]);
        assert_eq!(used(&arrows, "sys::clock"), ["exit"]);
        assert_eq!(used(&arrows, "exit"), [""; 0]);
        assert!(arrows.circle().is_none());
    }

    #[test]
    fn a_circle_and_an_arrow_up_are_found() {
        let mut files = HOUSE.to_vec();
        files.push((
            "sys/spawn.rs",
            "use super::wait;\nfn d() { wait::sleep(crate::state::record::b()) }",
        ));
        let floors: &[&[&str]] = &[&["state"], &["sys"], &["lib", "exit"]];
        let against = arrows(&files).against(floors);
        assert_eq!(against, ["sys::spawn uses state::record"]);
        files[7].1 = "use super::spawn::d;";
        let arrows = arrows(&files);
        let circle = arrows.circle().expect("a circle");
        let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
        assert_eq!(names.first(), names.last());
        assert!(names.contains(&"sys::spawn".to_owned()), "{names:?}");
    }
}

/// Crates: name, directory of the sources, and layers.
#[cfg(test)]
const CRATES: [(&str, &str, &[&[&str]]); 4] = [
    ("again_base", BASE, BASE_FLOORS),
    ("again", HELPER, FLOORS),
    ("again_fleet", FLEET, FLEET_FLOORS),
    ("again_bench", "bench/src", BENCH_FLOORS),
];

#[test]
fn no_files_use_each_other_in_a_circle() {
    for (krate, root, _) in CRATES {
        let arrows = Arrows::new(krate, &sources(root));
        let circle = arrows.circle().unwrap_or_default();
        let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
        assert!(
            names.is_empty(),
            "a circle in {root}: {}",
            names.join(" > ")
        );
    }
}

#[test]
fn every_arrow_between_layers_goes_down() {
    for (krate, root, floors) in CRATES {
        let against = Arrows::new(krate, &sources(root)).against(floors);
        assert!(against.is_empty(), "in {root}: {}", against.join("\n"));
    }
}
