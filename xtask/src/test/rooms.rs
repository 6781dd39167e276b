//! The rooms: what there is to test, and what each takes.

/// What a room runs.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// The unit tests of a package's library or program.
    Unit(&'static str),
    /// An integration test of the program, so many tests at a time.
    Tests(&'static str, usize),
    /// The same of the second program.
    Fleet(&'static str, usize),
    /// The same with the engines of a newer Debian.
    Newer(&'static str, usize),
    /// This program with another word.
    Task(&'static [&'static str]),
    /// A program of the repository.
    Script(&'static [&'static str]),
}

/// A part of the tests that says by itself whether it passed. What it is for stands at the top of its main file.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    pub name: &'static str,
    pub run: Run,
    /// How much of a core it keeps busy, in tenths; with two cores rooms run side by side that take twenty together.
    pub load: u32,
    /// Seconds after which it is ended.
    pub limit: u32,
    /// Debian packages that it takes.
    pub needs: &'static str,
    /// Programs of the repository that have to succeed first.
    pub before: &'static [&'static str],
    /// When it runs.
    pub when: When,
}

/// In which of the sets of rooms a room is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// For every change; a container's root will do.
    Check,
    /// Before a change is kept.
    Test,
    /// The same; it takes more privilege than a container has.
    Lab,
    /// At night: what says something only after long.
    Nightly,
}

const ROOM: Room = Room {
    name: "",
    run: Run::Script(&[]),
    load: 10,
    limit: 1500,
    needs: "",
    before: &[],
    when: When::Test,
};

/// What the client of etcd is built with.
const PROTOC: &str = "protobuf-compiler libprotobuf-dev";
/// The same, and what makes a CA as Puppet's.
const PUPPET_CA: &str =
    "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli";

/// What nodes and an etcd of their own take, with real runs of Puppet.
const FLEET: &str = "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli etcd-server etcd-client systemd util-linux gcc";

/// All rooms. Of those that may start next the first one does: what stands no booted machine beside it, and what mostly waits; then the long ones.
pub const ROOMS: &[Room] = &[
    Room {
        name: "fleet-kick",
        run: Run::Fleet("kick", 2),
        // A puppetserver, a PuppetDB and services that answer within 5 s or not at all: no booted machine may stand beside it.
        load: 15,
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent puppetserver ruby-puppetserver-ca-cli puppetdb \
                puppet-terminus-puppetdb postgresql etcd-server systemd util-linux",
        ..ROOM
    },
    Room {
        name: "fleet-engines",
        run: Run::Fleet("engines", 2),
        load: 1,
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli etcd-server etcd-client nats-server",
        ..ROOM
    },
    Room {
        name: "fleet-engines-13",
        run: Run::Newer("engines", 2),
        load: 1,
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli etcd-client",
        ..ROOM
    },
    Room {
        name: "fleet-service",
        run: Run::Fleet("service", 4),
        load: 3,
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli etcd-server etcd-client nats-server",
        ..ROOM
    },
    Room {
        name: "style",
        run: Run::Task(&["style"]),
        load: 12,
        needs: PROTOC,
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "lab",
        run: Run::Tests("lab", 4),
        load: 4,
        needs: PROTOC,
        // Packages of both programs.
        before: &["tests/lab/setup", "tests/lab/image", "tests/tools/build"],
        when: When::Lab,
        ..ROOM
    },
    Room {
        name: "fleet-lab",
        run: Run::Fleet("lab", 3),
        load: 4,
        limit: 2400,
        // One more gives the processes of a machine another clock.
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli libfaketime",
        before: &["tests/lab/setup", "tests/lab/server-image"],
        when: When::Lab,
    },
    Room {
        name: "module",
        run: Run::Script(&["tests/module/run"]),
        load: 8,
        limit: 2400,
        needs: "puppet-agent puppet-lint ruby-rspec-puppet ruby-puppetlabs-spec-helper ruby-rspec-puppet-facts facterdb \
                puppet-strings metadata-json-lint r10k git openssl bundler python3 puppetdb puppet-terminus-puppetdb postgresql",
        ..ROOM
    },
    Room {
        name: "puppet",
        run: Run::Tests("puppet", 3),
        load: 8,
        needs: "puppet-agent puppetserver",
        ..ROOM
    },
    Room {
        name: "matrix",
        run: Run::Script(&["tests/matrix/run"]),
        load: 10,
        needs: "puppet-agent debootstrap util-linux mount",
        when: When::Lab,
        ..ROOM
    },
    Room {
        name: "package",
        run: Run::Script(&["tests/package/run"]),
        load: 10,
        // It builds for both architectures.
        needs: "cpio rpm rpm2cpio lintian rpmlint mandoc puppet-agent qemu-user-static python3 dpkg gcc gcc-aarch64-linux-gnu \
                protobuf-compiler libprotobuf-dev",
        ..ROOM
    },
    Room {
        name: "demo-fleet",
        run: Run::Script(&["tests/tools/demo-fleet", "--check"]),
        load: 2,
        needs: FLEET,
        ..ROOM
    },
    Room {
        name: "process",
        run: Run::Tests("process", 4),
        load: 3,
        needs: "ruby util-linux",
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "faults",
        // No more at a time: it starts hundreds of processes at once.
        run: Run::Tests("faults", 2),
        load: 3,
        needs: "util-linux xfsprogs libcap2-bin",
        ..ROOM
    },
    Room {
        name: "morning-fleet",
        run: Run::Script(&["tests/tools/morning-fleet", "--check"]),
        load: 2,
        needs: FLEET,
        ..ROOM
    },
    Room {
        name: "unit",
        run: Run::Unit("again"),
        load: 8,
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "fleet-unit",
        run: Run::Unit("again-fleet"),
        needs: PROTOC,
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "fleet-identity",
        run: Run::Fleet("identity", 2),
        needs: PUPPET_CA,
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "fleet-take",
        run: Run::Fleet("take", 2),
        needs: PUPPET_CA,
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "fleet-verbs",
        run: Run::Fleet("verbs", 2),
        load: 3,
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli etcd-server etcd-client nats-server",
        ..ROOM
    },
    Room {
        name: "fleet-manual",
        run: Run::Fleet("manual", 2),
        needs: PROTOC,
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "fleet-outbox",
        run: Run::Fleet("outbox", 2),
        needs: PROTOC,
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "fleet-simulation",
        // Its seeds take all processors, one test after the other.
        run: Run::Fleet("simulation", 1),
        load: 15,
        needs: PROTOC,
        ..ROOM
    },
    Room {
        name: "house",
        run: Run::Unit("xtask"),
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "operator",
        run: Run::Tests("operator", 4),
        load: 4,
        needs: "puppet-agent mandoc prometheus zsh fish bash-completion ruby",
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "converge",
        run: Run::Tests("converge", 4),
        load: 8,
        needs: "puppet-agent ruby",
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "cli",
        run: Run::Tests("cli", 4),
        load: 5,
        needs: "binutils ruby",
        when: When::Check,
        ..ROOM
    },
    Room {
        name: "counts",
        run: Run::Task(&["counts"]),
        needs: "valgrind ruby",
        ..ROOM
    },
    Room {
        name: "demo",
        run: Run::Script(&["tests/tools/demo", "--check"]),
        load: 2,
        needs: "puppet-agent",
        ..ROOM
    },
    Room {
        name: "morning",
        run: Run::Script(&["tests/tools/morning", "--check"]),
        load: 2,
        needs: "puppet-agent procps",
        ..ROOM
    },
    Room {
        name: "fuzz",
        run: Run::Script(&["tests/tools/fuzz", "600"]),
        needs: "g++ protobuf-compiler libprotobuf-dev",
        when: When::Nightly,
        ..ROOM
    },
    Room {
        name: "bench",
        run: Run::Task(&["bench", "--quick"]),
        load: 20,
        needs: "puppet-agent python3 gcc libc6-dev binutils ruby ruby-puppetserver-ca-cli etcd-server etcd-client task-spooler protobuf-compiler libprotobuf-dev",
        when: When::Nightly,
        ..ROOM
    },
    Room {
        name: "mutants",
        run: Run::Script(&["tests/tools/mutants"]),
        load: 20,
        limit: 10_800,
        when: When::Nightly,
        ..ROOM
    },
    Room {
        name: "fleet-seeds",
        run: Run::Script(&["tests/tools/seeds", "100000"]),
        load: 20,
        limit: 10_800,
        needs: PROTOC,
        when: When::Nightly,
        ..ROOM
    },
    Room {
        name: "fleet-sweep",
        // More than a thousand kills together.
        run: Run::Script(&["tests/tools/sweep", "6"]),
        load: 20,
        limit: 10_800,
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli etcd-server gcc",
        when: When::Nightly,
        ..ROOM
    },
    Room {
        name: "fleet-upgrade",
        run: Run::Script(&["tests/upgrade/run"]),
        load: 15,
        // Two versions are built.
        limit: 4500,
        needs: "protobuf-compiler libprotobuf-dev ruby puppet-agent ruby-puppetserver-ca-cli dpkg rpm python3 gcc gcc-aarch64-linux-gnu git",
        before: &["tests/lab/setup", "tests/lab/server-image"],
        when: When::Nightly,
    },
    Room {
        name: "events-cost",
        run: Run::Script(&["tests/tools/events-cost", "9"]),
        load: 20,
        needs: "puppet-agent",
        when: When::Nightly,
        ..ROOM
    },
    Room {
        name: "soak",
        run: Run::Script(&["tests/tools/soak", "600", "1"]),
        limit: 3000,
        needs: "gcc python3 util-linux",
        when: When::Nightly,
        ..ROOM
    },
    Room {
        name: "matrix-all",
        run: Run::Script(&["tests/matrix/run", "--all"]),
        load: 20,
        limit: 3000,
        needs: "puppet-agent debootstrap util-linux mount",
        when: When::Nightly,
        ..ROOM
    },
];
