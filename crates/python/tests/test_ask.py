"""Recordings, tables and questions: the answers are those of the program, as Arrow."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import duckdb
import pandas
import polars
import pyarrow
import pytest

import kernlane

BY_FUNCTION = "SELECT function, count(*) AS calls, sum(own) AS own FROM calls GROUP BY 1 ORDER BY 1"


def asked(program, rec, *words):
    """What `kernlane ask --json` prints."""
    command = [program, "ask", rec.path, "--kernel", rec.kernel, "--json", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def with_addresses(table, rows):
    """The rows, with addresses as the program prints them."""
    columns = kernlane.tables()[table]["columns"]
    addresses = [name for name, column in columns.items() if column["type"] == "ADDRESS"]
    for row in rows:
        for name in addresses:
            row[name] = None if row[name] is None else hex(row[name])
    return rows


def test_answers_are_those_of_the_program(program, rec):
    assert rec.ask(BY_FUNCTION).rows() == asked(program, rec, BY_FUNCTION)
    named = asked(program, rec, "top-calls", "--set", "top=3")
    assert rec.ask("top-calls", top=3).rows() == named and len(named) == 3
    sql = "SELECT count(*) AS calls FROM calls WHERE function = :f AND address = :at"
    [first] = rec.ask("SELECT function AS f, address AS at FROM calls LIMIT 1").rows()
    [[calls]] = [row.values() for row in rec.ask(sql, **first).rows()]
    assert calls > 0 and first["at"] > 1 << 63


@pytest.mark.parametrize("table", ["conditions", "tasks", "switches", "interrupts", "functions"])
def test_tables_are_those_of_the_program(program, rec, table):
    rows = with_addresses(table, getattr(rec, table)().rows())
    assert rows == asked(program, rec, f"SELECT * FROM {table}") and rows


def test_every_table_is_a_method():
    for table in kernlane.tables():
        assert callable(getattr(kernlane.Recording, table))


def test_columns_and_types(rec):
    answer = rec.services(columns=["service", "start", "cycles"], machines="simos-1994")
    assert answer.columns == ["service", "start", "cycles"]
    table = pyarrow.table(answer)
    types = [pyarrow.string(), pyarrow.int64(), pyarrow.float64()]
    assert table.schema.types == types and table["cycles"].null_count < len(table)
    assert pyarrow.table(rec.services(["cycles"]))["cycles"].null_count == len(table)
    assert pyarrow.schema(rec.calls(["address"])).types == [pyarrow.uint64()]
    empty = pyarrow.table(rec.ask("SELECT function, own FROM calls WHERE own < 0"))
    assert len(empty) == 0 and empty.schema.types == [pyarrow.string(), pyarrow.int64()]


def test_other_libraries_take_answers(rec):
    answer = rec.calls(["function", "own"])
    table = pyarrow.table(answer)
    frame = polars.DataFrame(answer)
    assert frame.to_arrow().cast(table.schema).equals(table)
    assert pandas.DataFrame.from_arrow(answer)["own"].sum() == frame["own"].sum() > 0
    summed = duckdb.sql("SELECT count(*), sum(own) FROM answer").fetchall()
    assert summed == [(len(table), frame["own"].sum())]
    kept = table.sort_by("function").group_by("function", use_threads=False)
    kept = kept.aggregate([([], "count_all"), ("own", "sum")]).to_pylist()
    sql = {row["function"]: (row["calls"], row["own"]) for row in rec.ask(BY_FUNCTION).rows()}
    assert {row["function"]: (row["count_all"], row["own_sum"]) for row in kept} == sql


def test_numbers_are_not_copied(rec):
    """Who takes rows holds the memory that Kernlane made."""
    answer = rec.calls(["own", "start"])
    allocated = pyarrow.total_allocated_bytes()
    table = pyarrow.table(answer)
    assert table.nbytes > 1 << 20 and pyarrow.total_allocated_bytes() == allocated


def test_several_recordings(rec):
    sql = "SELECT (SELECT count(*) FROM a.tasks) AS a, (SELECT count(*) FROM b.tasks) AS b"
    [row] = kernlane.ask(sql, a=rec, b=rec).rows()
    assert row["a"] == row["b"] > 0
    sql = "SELECT :x + count(*) AS n FROM a.tasks"
    [row] = kernlane.ask(sql, parameters={"x": 1}, a=rec).rows()
    assert row["n"] == 1 + len(rec.tasks().rows())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda rec: rec.ask("SELECT * FROM cals"), "the nearest name is calls"),
        (lambda rec: rec.ask("DELETE FROM calls"), "questions only read"),
        (lambda rec: rec.ask("top-cals"), "no question is named"),
        (lambda rec: rec.ask("top-calls", limit=1), "has no parameter limit"),
        (lambda rec: rec.ask("SELECT :x AS x FROM tasks"), "has no value"),
        (lambda rec: rec.ask("SELECT 1 AS a, 2 AS a"), "two columns are named a"),
        (lambda rec: rec.misses(), "no machine is named"),
        (lambda rec: rec.misses(machines="zen9"), "no machine is called zen9"),
        (lambda rec: rec.calls(columns=["own", "nosuch"]), "no column"),
        (lambda rec: rec.calls(columns=[]), "at least one column"),
        (lambda rec: kernlane.ask("SELECT 1 AS a"), "name a recording"),
        (lambda rec: kernlane.ask("SELECT 1 AS a", temp=rec), "cannot name a recording"),
        (lambda rec: kernlane.open("/nowhere.rec"), "/nowhere.rec"),
        (lambda rec: kernlane.open(rec.path, kernel="/nowhere"), "/nowhere"),
        (lambda rec: kernlane.open("a\0b"), None),
        (lambda rec: kernlane.layout("/nowhere.rec", output="x.kll"), "/nowhere.rec"),
        (lambda rec: kernlane.layout(rec, output="x.kll", algorithm="best"), "best"),
        (lambda rec: kernlane.layout(rec, output="x.kll", part=(0.5, 0.2)), "part="),
        (lambda rec: kernlane.replay(rec, layouts=["/nowhere.kll"]), "/nowhere.kll"),
        (lambda rec: kernlane.replay(rec, order="sorted"), "side-by-side"),
        (lambda rec: kernlane.replay(rec, within=0), "0 %"),
        (lambda rec: kernlane.record("nosuch", kernel="/nowhere", output="x"), "nosuch"),
        (lambda rec: kernlane.record(kernel="/nowhere", output="x"), "give either a workload"),
        (lambda rec: kernlane.Machine("zen9"), "no machine is called zen9"),
    ],
)
def test_bad_input_raises(rec, wrong, words):
    expected = kernlane.Error if words else (kernlane.Error, ValueError)
    with pytest.raises(expected) as raised:
        wrong(rec)
    assert words is None or words in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rec: rec.ask("SELECT :x AS x FROM tasks", x=object()),
        lambda rec: rec.ask("SELECT :x AS x FROM tasks", x=1 << 70),
        lambda rec: rec.ask(1),
        lambda rec: rec.misses(machines=[1]),
        lambda rec: kernlane.replay(1),
    ],
)
def test_wrong_types_raise(rec, wrong):
    with pytest.raises(TypeError):
        wrong(rec)


def test_an_error_behind_the_first_rows(rec):
    """It is the library's own exception, with Kernlane's words."""
    sql = "SELECT CASE WHEN id < 70000 THEN 1 ELSE 'a' END AS x FROM calls"
    answer = rec.ask(sql)
    with pytest.raises(kernlane.Error, match="another type than the first rows"):
        answer.rows()
    with pytest.raises(Exception, match="another type than the first rows"):
        pyarrow.table(answer)


def test_other_threads_run(rec):
    """While Kernlane works, the lock of Python is free."""
    turns, done = [0], threading.Event()

    def count():
        while not done.is_set():
            turns[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    begun = time.monotonic()
    pyarrow.table(rec.calls(["own"]))
    elapsed = time.monotonic() - begun
    done.set()
    thread.join()
    assert turns[0] > 50 * elapsed


LONG = """
import kernlane, pyarrow, sys, time
rec = kernlane.open(sys.argv[1], kernel=sys.argv[2])
take = {
    # In the walk, in SQLite, in another library, and in a replay.
    "walk": lambda: rec.ask("SELECT count(*) FROM branches a WHERE a.function = 'nosuch'"),
    "sql": lambda: rec.ask(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"),
    "arrow": lambda: pyarrow.table(rec.branches()),
    "replay": lambda: kernlane.replay(rec, machines="zen4", exact=True),
}[sys.argv[3]]
print("working", flush=True)
try:
    while True:
        try:
            take()
        except OSError:
            # The other library's own exception. Ctrl-C follows.
            time.sleep(30)
except KeyboardInterrupt:
    pass
# And the next question is answered.
print(len(rec.conditions().rows()), flush=True)
"""


@pytest.mark.parametrize("what", ["walk", "sql", "arrow", "replay"])
def test_ctrl_c_ends_work(rec, what):
    command = [sys.executable, "-c", LONG, rec.path, rec.kernel, what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "working\n"
            time.sleep(1)
            begun = time.monotonic()
            os.kill(child.pid, signal.SIGINT)
            line = child.stdout.readline()
            assert int(line) > 5
            # Less than a second, but for a debug build that reads a kernel on a busy machine.
            assert time.monotonic() - begun < 10
        finally:
            child.kill()
