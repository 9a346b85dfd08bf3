# The commands of the README, the everyday tests, and the book.
.PHONY: demo demo-relink test test-all quick format book setup setup-tests

demo: setup
	cargo xtask demo

# The same with a kernel that is built and relinked.
demo-relink: setup
	cargo xtask demo --relink

test: setup-tests
	cargo xtask test

# What `make test` leaves out.
test-all: setup-tests
	cargo xtask test --all

quick:
	cargo xtask test --quick

# Formats every Rust file, those too that the tables of formats, policies and algorithms declare and
# `cargo fmt` does not see. With CHECK=--check it only says what is not formatted.
format:
	git ls-files -z --cached --others --exclude-standard '*.rs' | xargs -0 ls -d 2>/dev/null \
		| xargs rustfmt --edition 2024 $(CHECK)

book:
	xtask/book.sh

setup:
	xtask/setup.sh

setup-tests:
	xtask/setup.sh --for-tests
