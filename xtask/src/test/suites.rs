//! Suites: what each runs and needs, and the sets that they belong to.

use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};

/// The columns are set, name, load, time limit in minutes, what the suite runs, and what it
/// needs.
///
/// - The load is in tenths of a core; suites run side by side while the cores last. The first
///   suite that still fits starts next, so those come first that take long because their steps
///   follow each other, and last those that use a core each to their end.
/// - A suite runs the unit tests of a package (`unit`), an integration test with a number of
///   threads and filters (`tests`, `fleet`, `xtask-tests`; `newer` with the backends of a newer
///   Debian), the privileged tests of all programs (`privileged`), this program (`xtask`), a
///   script with the programs that the tests were built with (`programs`), or a script. Tests in
///   modules named `nightly` run at night only.
/// - It needs Debian packages, or groups of them (`@`), and scripts of the repository that have
///   to succeed first (with a slash).
const TABLE: &str = "
test    fleet-kick             6  25 | fleet kick 2           | @ca puppetserver puppetdb puppet-terminus-puppetdb postgresql etcd-server systemd util-linux
test    fleet-service          9  25 | fleet service 8        | @ca @backends
test    fleet-backends         3  25 | fleet backends 8       | @ca @backends openssl
test    module                 6  40 | tests/module/run       | @puppet puppet-lint ruby-rspec-puppet ruby-puppetlabs-spec-helper ruby-rspec-puppet-facts facterdb puppet-strings metadata-json-lint rubocop bundler python3 systemd puppetdb puppet-terminus-puppetdb postgresql
test    puppet                 9  25 | tests puppet 3         | @puppet puppetserver bundler
test    demo-fleet             3  25 | programs tests/tools/demo-fleet --check | @ca etcd-server etcd-client systemd util-linux
test    troubleshooting-fleet  2  25 | programs tests/tools/troubleshooting-fleet --check | @ca etcd-server etcd-client systemd util-linux
test    fleet-verbs            5  25 | fleet verbs 2          | @ca @backends
check   process                5  25 | tests process 4        | ruby util-linux
test    faults                 4  25 | tests faults 2         | util-linux libcap2-bin
check   converge               5  25 | tests converge 4       | @puppet ruby
check   operator               4  25 | tests operator 4       | @puppet mandoc prometheus zsh fish bash-completion ruby
test    troubleshooting        3  25 | tests/tools/troubleshooting --check | @puppet procps
test    tutorial               3  25 | tests/tools/tutorial --check | @puppet
test    demo                   3  25 | tests/tools/demo --check | @puppet
check   readme                 3  25 | tests/tools/readme --check | @puppet
check   fleet-executor         6  25 | fleet executor 2       | @ca
check   cli                    4  25 | tests cli 4            | binutils ruby
check   style                  4  25 | xtask style            |
check   runner                 1  25 | xtask-tests runner 2   |
check   fleet-identity         8  25 | fleet identity 2       | @ca
check   fleet-manual           8  25 | fleet manual 2         |
check   fleet-outbox           8  25 | fleet outbox 2         |
check   unit                   8  25 | unit again             |
check   base-unit             10  25 | unit again-base        |
check   fleet-unit            10  25 | unit again-fleet       |
test    fleet-simulation      10  25 | fleet simulation 1     |
check   repository            10  25 | unit xtask             |

system  fleet-lab              4  40 | fleet lab 3            | @ca libfaketime tests/lab/setup tests/lab/server-image
system  lab                    4  25 | tests lab 4            | tests/lab/setup tests/lab/image tests/tools/build
system  privileged             5  25 | privileged             | @ca @backends util-linux mount xfsprogs e2fsprogs python3 bubblewrap tests/tools/build
system  matrix                10  25 | tests/matrix/run       | puppet-agent debootstrap util-linux mount
system  package               10  25 | tests/package/run      | cpio rpm rpm2cpio lintian rpmlint mandoc puppet-agent qemu-user-static python3 dpkg gcc-aarch64-linux-gnu
system  sites                  8  25 | tests/module/sites     | puppet-agent r10k git openssl python3 util-linux mount
system  counts                10  25 | tests counts 1         | valgrind ruby util-linux

nightly fuzz                  10  25 | tests/tools/fuzz 600   | g++
nightly properties             8  25 | unit again             |
nightly fleet-properties      10  25 | unit again-fleet       |
nightly bench                 20  25 | xtask bench --quick    | puppet-agent python3 libc6-dev ruby ruby-puppetserver-ca-cli etcd-server etcd-client task-spooler
nightly mutants               20 180 | tests/tools/mutants    |
nightly fleet-seeds           20 180 | tests/tools/seeds 100000 |
nightly fleet-sweep           20 180 | tests/tools/sweep 6    | @ca etcd-server
nightly fleet-upgrade         15  75 | tests/upgrade/run      | @ca @release tests/lab/setup tests/lab/server-image
nightly fleet-lab-backends     4  40 | fleet lab 2 nightly::  | @ca libfaketime tests/lab/setup tests/lab/server-image
nightly events-cost           20  25 | tests/tools/events-cost 9 | puppet-agent
nightly soak                  10  50 | tests/tools/soak 600 1 | python3 util-linux
nightly release               20  90 | tests/release/run      | @release minisign dnf r10k buildah libfaketime tests/lab/setup
nightly matrix-all            20  50 | tests/matrix/run --all | puppet-agent debootstrap util-linux mount
nightly module-renamed        10  25 | tests/module/specs     | puppet-agent ruby-rspec-puppet ruby-puppetlabs-spec-helper ruby-rspec-puppet-facts facterdb
nightly deny                  10  25 | tests/tools/deny       |
nightly sites-renamed          8  25 | tests/module/sites --renamed | puppet-agent r10k git openssl python3 util-linux mount
nightly fleet-backends-13      4  25 | newer backends 8       | @ca etcd-client openssl
";

/// Packages that every build needs: a linker, and those with which the etcd client is built.
pub const BUILD: &str = "binutils gcc libc6-dev protobuf-compiler libprotobuf-dev";

/// Groups of Debian packages.
const GROUPS: [(&str, &str); 4] = [
    // A CA like Puppet's.
    (
        "@ca",
        "ruby puppet-agent augeas-tools ruby-puppetserver-ca-cli",
    ),
    // Without augparse, libaugeas parses all of its lenses in each run of Puppet to determine its
    // version: half of the time of a run.
    ("@puppet", "puppet-agent augeas-tools"),
    ("@backends", "etcd-server etcd-client nats-server"),
    // Packages that make a release.
    (
        "@release",
        "dpkg rpm python3 gcc-aarch64-linux-gnu git jq apt-utils createrepo-c gnupg openssh-client",
    ),
];

/// Set of suites that run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// Suites of `make check` and `make test`.
    Check,
    /// Suites of `make test`, which need no more than the privileges of a container's root.
    Test,
    /// Suites of `make test-system`, which need all privileges of root.
    System,
    /// Suites of `make nightly`.
    Nightly,
}

/// Part of the tests that reports whether it passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suite {
    pub set: Set,
    pub name: &'static str,
    /// Load in tenths of a core.
    pub load: u32,
    /// Time limit in minutes.
    pub limit: u32,
    /// Words of the column described at [`TABLE`].
    pub runs: Vec<&'static str>,
    /// Debian packages that the suite needs.
    pub packages: Vec<&'static str>,
    /// Scripts of the repository that must succeed first.
    pub before: Vec<&'static str>,
}

/// All suites, in the order in which they start.
pub static SUITES: LazyLock<Vec<Suite>> = LazyLock::new(|| {
    let rows = TABLE.lines().filter(|row| !row.is_empty());
    rows.map(|row| Suite::parse(row).expect(row)).collect()
});

impl Suite {
    /// Parses a suite from its row in the table.
    pub fn parse(row: &'static str) -> Result<Suite> {
        let columns: Vec<_> = row.split('|').collect();
        let &[head, runs, needs] = &columns[..] else {
            bail!("expected SET NAME LOAD MINUTES | RUNS | NEEDS: {row}");
        };
        let &[set, name, load, limit] = &head.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("expected SET NAME LOAD MINUTES: {head}");
        };
        let group = |need: &'static str| GROUPS.iter().find(|(name, _)| *name == need);
        let needs = needs.split_whitespace();
        let needs = needs.flat_map(|need| group(need).map_or(need, |(_, all)| all).split(' '));
        let (before, packages) = needs.partition(|need| need.contains('/'));
        let runs: Vec<_> = runs.split_whitespace().collect();
        ensure!(!runs.is_empty(), "{name} runs nothing");
        Ok(Suite {
            set: match set {
                "check" => Set::Check,
                "test" => Set::Test,
                "system" => Set::System,
                "nightly" => Set::Nightly,
                _ => bail!("there is no set {set}"),
            },
            name,
            load: load.parse().context("the load")?,
            limit: limit.parse().context("the limit")?,
            runs,
            packages,
            before,
        })
    }

    /// Whether the suite runs the programs that the tests were built with.
    pub fn needs_programs(&self) -> bool {
        self.runs[0] == "programs"
    }

    /// Whether the suite runs, or lints, all test programs.
    pub fn needs_all_programs(&self) -> bool {
        matches!(self.runs[..], ["privileged"] | ["xtask", "style"])
    }

    /// Returns the key in [`Programs`](super::programs::Programs) of the test program that the
    /// suite runs.
    pub fn program(&self) -> Option<String> {
        match self.runs[..] {
            [
                kind @ ("unit" | "tests" | "fleet" | "xtask-tests"),
                name,
                ..,
            ] => Some(format!("{kind} {name}")),
            ["newer", name, ..] => Some(format!("fleet {name}")),
            ["tests/matrix/run", ..] => Some("tests matrix".to_owned()),
            _ => None,
        }
    }
}
