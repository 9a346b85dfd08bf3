"""The example notebook runs, and its numbers are those of the reports."""

import json
import os
import pathlib
import subprocess

import nbclient
import nbformat
import pytest

NOTEBOOK = pathlib.Path(__file__).parents[1] / "examples" / "figures.ipynb"
RESULTS = """
import json
print(json.dumps({"instructions": instructions, "caches": figure_4_6.to_dict("index")}))
"""


def test_the_notebook_draws_figures(program, path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without results"
    notebook.cells.append(nbformat.v4.new_code_cell(RESULTS))
    os.environ["KERNLANE_RECORDING"] = str(path)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 3
    found = json.loads(outputs[-1]["text"])

    # `report sizes` counts the same misses in another way: one stack for each set.
    command = [program, "report", "sizes", "--json", path]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for size in (16, 64, 256):
        ours = found["caches"][f"{size}I"]
        [cache] = [
            cache for table in report for cache in table["caches"]
            if cache["holds"] == "instructions" and cache["size"] == size << 10
            and cache["ways"] == 2
        ]
        kernel, user = cache["kernel"], cache["user"]
        theirs = {
            "KERN-self": kernel["own"],
            "KERN-other": kernel["other"],
            "USER-self": user["own"],
            "USER-other": user["other"],
            "cold": kernel["cold"] + user["cold"],
        }
        for cause, misses in theirs.items():
            assert ours[cause] == pytest.approx(100 * misses / found["instructions"]), cause
