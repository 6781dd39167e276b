# again: build, try, test. Every target does its own set-up on a Debian machine with Rust.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: build check

TARGET := x86_64-unknown-linux-musl

build:
	@tests/tools/build

check: build
