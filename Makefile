# The two commands of the README.
.PHONY: demo test setup

demo: setup
	cargo xtask demo

test: setup
	cargo xtask test

setup:
	xtask/setup.sh
