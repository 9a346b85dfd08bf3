# The two commands of the README, and the book.
.PHONY: demo test book setup

demo: setup
	cargo xtask demo

test: setup
	cargo xtask test

book:
	xtask/book.sh

setup:
	xtask/setup.sh
