# again: build it, see it work, test it. Each target does its own set-up on a Debian machine with Rust.

.PHONY: build build-aarch64 package release demo demo-fleet check test test-system nightly bench matrix lab soak fuzz clean

# Two stripped static binaries in dist/ and in the module's files: again, and again-fleet.
build:
	@tests/tools/need binutils gcc libc6-dev protobuf-compiler libprotobuf-dev
	@tests/tools/build

# The same for 64-bit ARM, cross-built: dist/again-aarch64, dist/again-fleet-aarch64.
build-aarch64:
	@tests/tools/need binutils gcc-aarch64-linux-gnu protobuf-compiler libprotobuf-dev
	@tests/tools/build aarch64

# What is given away, into dist/: .deb and .rpm for both architectures, and the module's tarball.
package:
	@tests/tools/need binutils gcc gcc-aarch64-linux-gnu protobuf-compiler libprotobuf-dev dpkg rpm python3
	@tests/tools/package

# All that a release page has, signed, into dist/release: doc/releasing.md.
release:
	@tests/tools/need binutils gcc gcc-aarch64-linux-gnu protobuf-compiler libprotobuf-dev dpkg rpm python3 git jq apt-utils createrepo-c gnupg openssh-client
	@packaging/release "$(VERSION)"

# A real puppet apply that needs six runs, in a scratch directory.
demo:
	@tests/tools/demo

# A fleet of three nodes on this machine, with a Puppet CA and an etcd: what changes on one runs Puppet on another.
demo-fleet:
	@tests/tools/demo-fleet

# For every change: formatting, lints, unit tests and the quickest suites. Three minutes once built.
check:
	@cargo xtask test --check

# Everything that an ordinary container's root may do: no mounts, no namespaces, no systemd.
test:
	@cargo xtask test

# The rest, with all privileges of root: booted machines, power cuts, other Puppets, packages.
test-system:
	@cargo xtask test --system

# What takes hours: every Puppet, fuzzing, mutants of the decisions, simulated fleets, a fleet
# killed at every step, an upgrade from packages, faults over and over, trial benchmarks, two releases.
nightly:
	@cargo xtask test --nightly

# Every Puppet, with a puppetserver each.
matrix:
	@cargo xtask test matrix-all

# Measures; writes the tables of doc/numbers. Half an hour; the machine should be idle.
bench:
	@tests/tools/need puppet-agent python3 gcc libc6-dev binutils ruby ruby-puppetserver-ca-cli etcd-server etcd-client task-spooler protobuf-compiler libprotobuf-dev
	@cargo xtask bench

# The tests of a booted machine alone.
lab:
	@cargo xtask test lab

# The suite faults over and over, for DURATION seconds, from SEED on.
DURATION ?= 600
SEED ?= 1
soak: build
	@tests/tools/need gcc python3 util-linux
	@tests/tools/soak $(DURATION) $(SEED)

# Coverage-guided fuzzing of every parser of what others write, for SECONDS.
SECONDS ?= 300
fuzz:
	@tests/tools/need g++ protobuf-compiler libprotobuf-dev
	@tests/tools/fuzz $(SECONDS)

clean:
	cargo clean
	rm -rf dist .cache puppet-module/files
