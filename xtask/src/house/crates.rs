use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use semver::{Version, VersionReq};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::advisories::{self, Advisory};
use crate::repository;

/// deny.toml, as far as it is understood here.
#[derive(Deserialize)]
struct Deny {
    graph: Graph,
    advisories: Advisories,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Advisories {
    ignore: Vec<Ignore>,
}

/// An advisory that is known to do no harm; without a reason the file is not read.
#[derive(Deserialize)]
struct Ignore {
    id: String,
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Spec>,
    deny: Vec<Spec>,
}

#[derive(Deserialize)]
struct Spec {
    /// A name, or one with a version: `getrandom@0.2`.
    #[serde(rename = "crate")]
    spec: String,
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// What cargo tells.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
}

#[derive(Deserialize)]
struct Crate {
    id: String,
    name: String,
    version: Version,
    license: Option<String>,
    /// None for ours.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

impl std::fmt::Display for Crate {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

impl Sources {
    fn allow(&self, found: &Crate) -> bool {
        let source = found.source.as_deref().unwrap_or_default();
        let registry = source.strip_prefix("registry+");
        registry.is_some_and(|url| self.allow_registry.iter().any(|allowed| allowed == url))
    }
}

impl Spec {
    fn fits(&self, found: &Crate) -> bool {
        let (name, version) = match self.spec.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (self.spec.as_str(), None),
        };
        // cargo-deny takes such a version for exact, as far as it goes.
        let exact = |text| VersionReq::parse(&format!("={text}")).expect("a version in deny.toml");
        found.name == name && version.is_none_or(|text| exact(text).matches(&found.version))
    }
}

/// Whether no requirement takes this version out. A pre-release is affected unless it is named.
fn affects(advisory: &Advisory, found: &Crate) -> bool {
    let safe = advisory.patched.iter().chain(&advisory.unaffected);
    advisory.package == found.name
        && !safe
            .map(|text| VersionReq::parse(text).unwrap_or_else(|e| panic!("{}: {e}", advisory.id)))
            .any(|safe| safe.matches(&found.version))
}

/// Whether the licence of this crate is met by what is allowed.
fn permitted(found: &Crate, allow: &[Licensee]) -> bool {
    let expression = found.license.as_deref().unwrap_or_default();
    // Older crates write a slash for `OR`.
    Expression::parse_mode(expression, ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|demand| allow.iter().any(|allowed| allowed.satisfies(demand)))
    })
}

/// What is wrong with the crates, or with what is said of them: a line each.
fn judge(crates: &[Crate], deny: &Deny, advisories: &[Advisory]) -> Vec<String> {
    let (ours, others): (Vec<&Crate>, Vec<&Crate>) =
        crates.iter().partition(|found| found.source.is_none());
    let mut wrong = Vec::new();
    wildcards(&ours, &mut wrong);
    for found in &others {
        if !deny.sources.allow(found) {
            wrong.push(format!("{found}: its source is {:?}", found.source));
        }
        if deny.bans.deny.iter().any(|banned| banned.fits(found)) {
            wrong.push(format!("{found}: it is banned"));
        }
    }
    known(&others, &deny.advisories.ignore, advisories, &mut wrong);
    licences(&others, &deny.licenses.allow, &mut wrong);
    duplicates(&others, &deny.bans.skip, &mut wrong);
    wrong
}

/// Requirements of ours that any version meets.
fn wildcards(ours: &[&Crate], wrong: &mut Vec<String>) {
    for own in ours {
        for wanted in &own.dependencies {
            if wanted.req == "*" && wanted.path.is_none() {
                wrong.push(format!("{own}: it takes any version of {}", wanted.name));
            }
        }
    }
}

/// Versions that an advisory affects, and advisories that are ignored and affect nothing.
fn known(others: &[&Crate], ignore: &[Ignore], advisories: &[Advisory], wrong: &mut Vec<String>) {
    let mut needed = BTreeSet::new();
    for found in others {
        for advisory in advisories.iter().filter(|a| affects(a, found)) {
            let (id, title, patched) = (&advisory.id, &advisory.title, &advisory.patched);
            if ignore.iter().any(|ignored| ignored.id == *id) {
                needed.insert(id);
            } else {
                wrong.push(format!("{found}: {id}, {title}; patched in {patched:?}"));
            }
        }
    }
    for Ignore { id, .. } in ignore {
        if !needed.contains(id) {
            wrong.push(format!("{id} is ignored and affects nothing"));
        }
    }
}

/// Licences that are not allowed, and those that are and need not be.
fn licences(others: &[&Crate], allow: &[String], wrong: &mut Vec<String>) {
    let parse = |text: &String| Licensee::parse(text).expect("a licence in deny.toml");
    let all: Vec<Licensee> = allow.iter().map(parse).collect();
    let (fine, refused): (Vec<&Crate>, Vec<&Crate>) = others
        .iter()
        .copied()
        .partition(|found| permitted(found, &all));
    for found in refused {
        wrong.push(format!("{found}: its licence is {:?}", found.license));
    }
    for one in allow {
        let rest = allow.iter().filter(|other| *other != one);
        let rest: Vec<Licensee> = rest.map(parse).collect();
        if fine.iter().all(|found| permitted(found, &rest)) {
            wrong.push(format!("{one} is allowed and no crate needs it"));
        }
    }
}

/// Crates of which there is more than one version, and those that are said to be and are not.
fn duplicates(others: &[&Crate], skip: &[Spec], wrong: &mut Vec<String>) {
    let mut versions: BTreeMap<&str, Vec<&Crate>> = BTreeMap::new();
    for found in others {
        versions.entry(&found.name).or_default().push(found);
    }
    versions.retain(|_, same| same.len() > 1);
    let skipped = |found: &Crate| skip.iter().any(|spec| spec.fits(found));
    for (name, same) in &versions {
        if same.iter().filter(|found| !skipped(found)).count() > 1 {
            wrong.push(format!("{name} is there in more than one version"));
        }
    }
    for spec in skip {
        if !versions.values().flatten().any(|found| spec.fits(found)) {
            let spec = &spec.spec;
            wrong.push(format!("{spec} is skipped and is no second version"));
        }
    }
}

fn deny() -> Deny {
    let text = std::fs::read_to_string(repository().join("deny.toml")).expect("deny.toml");
    basic_toml::from_str(&text).unwrap_or_else(|e| panic!("deny.toml: {e}"))
}

/// The crates that are built for these targets, by any program or test of ours.
fn crates(targets: &[String]) -> Vec<Crate> {
    let mut cargo = Command::new(env!("CARGO"));
    // A crate that is not on this machine yet is fetched, as for a build; else nothing is asked of a network.
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    for target in targets {
        cargo.args(["--filter-platform", target]);
    }
    let output = cargo.current_dir(repository()).output().expect("cargo");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("what cargo tells");
    let nodes = metadata.resolve.nodes.into_iter();
    let built: BTreeSet<String> = nodes.map(|node| node.id).collect();
    let packages = metadata.packages.into_iter();
    packages.filter(|found| built.contains(&found.id)).collect()
}

#[test]
fn the_crates_of_others_are_as_deny_toml_demands() {
    let deny = deny();
    let crates = crates(&deny.graph.targets);
    let advisories = advisories::list().expect("a list").advisories;
    assert!(crates.len() > 100 && crates.iter().any(|found| found.name == "rustls"));
    assert!(advisories.len() > 50 && deny.graph.targets.len() == 2);
    let wrong = judge(&crates, &deny, &advisories);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A crate of crates.io, under MIT.
fn other(name: &str, version: &str) -> Crate {
    Crate {
        id: String::new(),
        name: name.to_owned(),
        version: version.parse().expect("a version"),
        license: Some("MIT OR Apache-2.0".to_owned()),
        source: Some("registry+https://example.org/index".to_owned()),
        dependencies: Vec::new(),
    }
}

/// What is demanded below.
fn demands() -> Deny {
    let text = r#"
        graph = { targets = [] }
        advisories = { ignore = [{ id = "RUSTSEC-2026-0002", reason = "-" }] }
        licenses = { allow = ["MIT", "ISC"] }
        sources = { allow-registry = ["https://example.org/index"] }
        [bans]
        skip = [{ crate = "twice@0.2", reason = "-" }]
        deny = [{ crate = "openssl", reason = "-" }]
    "#;
    basic_toml::from_str(text).expect("demands")
}

/// One advisory that affects versions 1.2 to 1.4 of a crate, and one that is ignored.
fn two_advisories() -> Vec<Advisory> {
    let text = r#"
        as_of = ""
        source = ""
        [[advisory]]
        id = "RUSTSEC-2026-0001"
        package = "fragile"
        date = ""
        title = "it breaks"
        kind = "vulnerability"
        patched = [">= 1.5.0-beta.2, < 1.5.0", ">= 1.5.0", "^1.3.7"]
        unaffected = ["< 1.2.0"]
        [[advisory]]
        id = "RUSTSEC-2026-0002"
        package = "old"
        date = ""
        title = "nobody mends it"
        kind = "unmaintained"
        patched = []
        unaffected = []
    "#;
    let list: advisories::List = basic_toml::from_str(text).expect("a list");
    list.advisories
}

/// Crates with which nothing is wrong, and which need all that is demanded.
fn flawless() -> Vec<Crate> {
    let mut ours = other("ours", "0.1.0");
    (ours.license, ours.source) = (None, None);
    let mut isc = other("isc", "1.0.0");
    isc.license = Some("MIT AND ISC".to_owned());
    let mut slash = other("slash", "1.0.0");
    slash.license = Some("MIT/Apache-2.0".to_owned());
    let rest = [
        ("weak", "1.5.0"),
        ("old", "1.0.0"),
        ("twice", "0.2.7"),
        ("twice", "0.4.0"),
    ];
    let rest = rest.map(|(name, version)| other(name, version));
    [ours, isc, slash].into_iter().chain(rest).collect()
}

#[test]
fn versions_that_an_advisory_affects_are_told_from_those_that_it_does_not() {
    let known = two_advisories();
    let affected = |version| affects(&known[0], &other("fragile", version));
    for version in ["1.2.0", "1.3.6", "2.0.0-rc.1", "1.5.0-beta.1"] {
        assert!(affected(version), "{version}");
    }
    for version in [
        "0.9.0",
        "1.1.99",
        "1.3.7",
        "1.4.0",
        "1.5.0-beta.2",
        "1.5.0",
        "2.0.0",
    ] {
        assert!(!affected(version), "{version}");
    }
    assert!(
        affects(&known[1], &other("old", "9.9.9")),
        "it is mended nowhere"
    );
    assert!(
        !affects(&known[0], &other("fragile-too", "1.2.0")),
        "another crate"
    );
}

#[test]
fn what_is_wrong_with_crates_is_found() {
    let judge = |crates: &[Crate]| judge(crates, &demands(), &two_advisories());
    assert_eq!(judge(&flawless()), Vec::<String>::new());

    // One more crate, with something wrong.
    let with = |change: &dyn Fn(&mut Crate)| {
        let mut new = other("new", "1.0.0");
        change(&mut new);
        judge(&flawless().into_iter().chain([new]).collect::<Vec<_>>()).join("; ")
    };
    for bad in [
        "GPL-3.0-only",
        "MIT AND GPL-2.0-or-later",
        "Whatever OR MIT",
    ] {
        let found = with(&|new| new.license = Some(bad.to_owned()));
        assert_eq!(found, format!("new 1.0.0: its licence is Some({bad:?})"));
    }
    let choice = with(&|new| new.license = Some("GPL-2.0-only OR MIT".to_owned()));
    assert_eq!(choice, "");
    let none = with(&|new| new.license = None);
    assert_eq!(none, "new 1.0.0: its licence is None");
    for bad in [
        "git+https://example.org/index",
        "registry+https://example.com/index",
    ] {
        let found = with(&|new| new.source = Some(bad.to_owned()));
        assert_eq!(found, format!("new 1.0.0: its source is Some({bad:?})"));
    }
    let banned = with(&|new| new.name = "openssl".to_owned());
    assert_eq!(banned, "openssl 1.0.0: it is banned");
    let second = with(&|new| (new.name, new.version) = ("slash".to_owned(), Version::new(2, 0, 0)));
    assert_eq!(second, "slash is there in more than one version");
    let weak = with(&|new| (new.name, new.version) = ("fragile".to_owned(), Version::new(1, 2, 3)));
    assert!(
        weak.starts_with("fragile 1.2.3: RUSTSEC-2026-0001, it breaks; patched in"),
        "{weak}"
    );
    let wild = with(&|new| {
        new.source = None;
        let dependency = |path: Option<&str>| Dependency {
            name: "any".to_owned(),
            req: "*".to_owned(),
            path: path.map(str::to_owned),
        };
        new.dependencies = vec![dependency(None), dependency(Some("/ours"))];
    });
    assert_eq!(wild, "new 1.0.0: it takes any version of any");
}

#[test]
fn what_is_demanded_and_needed_no_more_is_found() {
    let without = |name: &str, version: Version| {
        let mut crates = flawless();
        crates.retain(|found| found.name != name || found.version != version);
        judge(&crates, &demands(), &two_advisories()).join("; ")
    };
    let ignored = "RUSTSEC-2026-0002 is ignored and affects nothing";
    assert_eq!(without("old", Version::new(1, 0, 0)), ignored);
    let licence = without("isc", Version::new(1, 0, 0));
    assert_eq!(licence, "ISC is allowed and no crate needs it");
    let skipped = without("twice", Version::new(0, 4, 0));
    assert_eq!(skipped, "twice@0.2 is skipped and is no second version");
    let unlisted = judge(&flawless(), &demands(), &two_advisories()[..1]);
    assert_eq!(unlisted, [ignored]);
}
