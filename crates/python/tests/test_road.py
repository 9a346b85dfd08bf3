"""Machines, layouts and replays: the results are those of the program."""

import json
import pathlib
import subprocess
import tomllib

import pytest

import kernlane


def test_machines_can_be_changed(rec, tmp_path):
    machine = kernlane.Machine("server-32k")
    assert machine["l1i"]["size"] == 32768 and "l1i" in machine and "name" in list(machine)
    machine["l1i"]["size"] = 65536
    with pytest.raises(kernlane.Error, match="a name of its own"):
        kernlane.replay(rec, machines=machine)
    machine["name"] = "server-64k"
    size = tomllib.loads(machine.to_toml())["l1i"]["size"]
    assert size == {"value": 65536, "source": "set in Python"}
    ways = tomllib.loads(machine.to_toml())["l1i"]["ways"]
    assert "set in Python" not in ways["source"]
    result = kernlane.replay(rec, machines=["server-32k", machine])
    assert [row["machine"] for row in result["rows"]] == ["server-32k", "server-64k"]
    small, large = (row["counters"]["l1i"]["kernel"] for row in result["rows"])
    assert sum(small.values()) > sum(large.values())
    file = tmp_path / "server-64k.toml"
    file.write_text(machine.to_toml())
    assert kernlane.replay(rec, machines=file)["rows"] == result["rows"][1:]
    machine["l1i"]["ways"] = 3
    with pytest.raises(kernlane.Error, match="l1i"):
        machine.to_toml()
    machine["l1i"] = "small"
    with pytest.raises(kernlane.Error):
        machine.to_toml()


def test_every_shipped_machine_survives():
    shipped = pathlib.Path(__file__).parents[3] / "machines"
    for file in shipped.glob("*.toml"):
        text = kernlane.Machine(file.stem).to_toml()
        assert tomllib.loads(text) == tomllib.loads(file.read_text())


def test_layouts_and_replays_are_those_of_the_program(program, rec, tmp_path):
    ours, theirs = tmp_path / "ours.kll", tmp_path / "theirs.kll"
    made = kernlane.layout(rec, output=ours)
    kernel = ["--kernel", rec.kernel, "--json"]
    command = [program, "layout", rec.path, "-o", theirs, *kernel]
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    assert made == json.loads(printed)
    assert ours.read_bytes() == theirs.read_bytes()
    result = kernlane.replay(rec, layouts=[ours], branches=True)
    command = [program, "replay", rec.path, "--layout", ours, "--branches", *kernel]
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    assert result == json.loads(printed)


def test_a_recording_has_a_summary(rec):
    assert rec.summary["workload"] == "ask" and rec.summary["totals"]["data"]["loads"] > 0
