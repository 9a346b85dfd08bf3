# The two commands of the README, the everyday tests, and the book.
.PHONY: demo test quick book setup

demo: setup
	cargo xtask demo

test: setup
	cargo xtask test

quick:
	cargo xtask test --quick

book:
	xtask/book.sh

setup:
	xtask/setup.sh
