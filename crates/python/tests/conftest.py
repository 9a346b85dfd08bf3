"""What the tests get from `cargo xtask python-test`: a recording, its kernel, and the program."""

import os
from pathlib import Path

import pytest

import kernlane


@pytest.fixture(scope="session")
def program():
    """The program, whose answers are the right ones."""
    return os.environ["KERNLANE_TEST_PROGRAM"]


@pytest.fixture(scope="session")
def path():
    """A recording with data accesses."""
    return Path(os.environ["KERNLANE_TEST_RECORDING"])


@pytest.fixture(scope="session")
def rec(path):
    """The recording, open."""
    return kernlane.open(path, kernel=os.environ["KERNLANE_TEST_KERNEL"])
