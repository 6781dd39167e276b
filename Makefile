# again: build it, see it work, test it. Each target does its own set-up on a Debian machine with Rust.

.PHONY: build demo test lab clean

# A stripped static binary in dist/ and in the module's files.
build:
	@tests/tools/need binutils
	@tests/tools/build

# A real puppet apply that needs six runs, in a scratch directory.
demo:
	@tests/tools/demo

# Everything; WITHOUT_LAB=1 leaves out what needs the privilege to boot a container.
test:
	@tests/tools/test

# The booted lab alone.
lab:
	@tests/tools/test lab

clean:
	cargo clean
	rm -rf dist .cache puppet-module/files
