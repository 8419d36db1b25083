"""Certify, attack, audit and reproduce in two ranks: the rows of one process, one voice, and none lost by a kill."""

import json
import shutil

import pytest

from securesgd.reproduce.grid import fill_grid, open_cells
from securesgd.runtime.tables import read_rows
from tests.command_line import run_here
from tests.ranks import own_lines

CERTIFY = ("--family", "interval", "--examples", "150", "--tolerance", "0.01", "--bounds", "interval")
ATTACK = (
    "--attack", "fgsm,ifgsm", "--budget", "0.1", "--examples", "110", "--steps", "2", "--eot", "1",
    "--draws", "20", "--certify-draws", "20", "--seed", "1",
)  # fmt: skip
AUDIT = ("--canaries", "400", "--seed", "1", "--json")


@pytest.fixture(scope="module")
def runs(tiny_run, launch):
    """A run for one process and a copy for two."""
    return [shutil.copytree(tiny_run, launch.place / name) for name in ("one", "two")]


def test_two_ranks_certify_by_intervals_what_one_does(runs, launch):
    one, two = runs
    assert run_here("certify", one, *CERTIFY).returncode == 0
    result = launch("certify", "two", *CERTIFY)
    assert result["codes"] == [0, 0], result["said"]
    assert result["said"].count("certificates of 150 examples are in") == 1
    assert (one / "certificates.csv").read_bytes() == (two / "certificates.csv").read_bytes()


def test_two_ranks_attack_as_one_does_also_after_a_kill(runs, launch):
    """110 examples are two parts of each of two cells, and two probes: 6 jobs."""
    one, two = runs
    assert run_here("attack", one, *ATTACK).returncode in (0, 1)
    whole = launch("attack", "two", *ATTACK)
    assert whole["codes"] in ([0, 0], [1, 0]), whole["said"]
    assert whole["said"].count("rows of every image are in two/attacks.csv") == 1
    assert (one / "attacks.csv").read_bytes() == (two / "attacks.csv").read_bytes()
    records = [json.loads((folder / "attacks.json").read_text()) for folder in runs]
    for record in records:
        for cell in record["cells"].values():
            del cell["seconds"]
    assert records[0] == records[1]
    killed = launch("attack", "two", *ATTACK, "--again", kill=[1, 0.6 * whole["seconds"]])
    if killed["codes"][1] == -9:  # it was not too late
        assert len(own_lines(killed)) == 1, killed["said"]
    assert launch("attack", "two", *ATTACK)["codes"] in ([0, 0], [1, 0])
    rows = [sorted((folder / "attacks.csv").read_text().splitlines()) for folder in runs]
    assert rows[0] == rows[1]


def test_the_first_rank_audits_alone(runs, launch):
    one, two = runs
    alone = json.loads(run_here("audit", one, *AUDIT).stdout)
    result = launch("audit", "two", *AUDIT)
    record = json.loads(result["said"][result["said"].index("{") :])
    assert record == json.loads((two / "audit.json").read_text())
    assert (record["coins_sha256"], record["white_box"]) == (alone["coins_sha256"], alone["white_box"])


def test_an_error_is_said_once(launch):
    for command in (["certify", "nowhere"], ["attack", "nowhere"], ["audit", "nowhere"], ["attack", "--bad-option"]):
        result = launch(*command, monitor_interval=10)  # on a busy machine the other rank may need a moment
        assert result["codes"] == [2, 2], result
        assert len(own_lines(result)) == 1, result["said"]
    jobs = launch("reproduce", "audit", "--jobs", "2")
    assert own_lines(jobs) == [
        "securesgd: error: jobs is 2; valid under torchrun: none, each process measures a cell at once"
    ]


CELLS = [{"kind": kind, "seed": seed} for kind in ("a", "b") for seed in range(3)][:5]


def measured(cell, work):
    """A row, and a mark of the rank on disk; in it, the rank is alone."""
    import os

    from securesgd.runtime.processes import Processes

    with (work / "calls").open("a") as file:
        file.write(f"{os.environ.get('RANK', '-')}\n")
    return [{**cell, "value": cell["seed"] + 0.5, "processes": Processes().count}]


def failing(cell, work):
    if cell == CELLS[3]:
        raise ValueError("the fourth cell")
    return measured(cell, work)


PROGRAM = """
from pathlib import Path
from securesgd.reproduce.grid import fill_grid
from securesgd.runtime.processes import process_group
from tests.test_shared_work import CELLS, failing, measured
with process_group():
    fill_grid(Path("{name}.csv"), CELLS, {measure}, Path("."))
import sys
sys.exit(0)
"""


def test_cells_of_an_experiment_are_shared_out(launch, tmp_path):
    fill_grid(tmp_path / "rows.csv", CELLS, measured, tmp_path)
    result = launch("-c", PROGRAM.format(name="whole", measure="measured"))
    assert result["codes"] == [0, 0], result["said"]
    assert (launch.place / "whole.csv").read_bytes() == (tmp_path / "rows.csv").read_bytes()
    assert sorted((launch.place / "calls").read_text().split()) == ["0", "0", "0", "1", "1"]
    failed = launch("-c", PROGRAM.format(name="failed", measure="failing"))
    assert 0 not in failed["codes"]
    assert len(read_rows(launch.place / "failed.csv")) == 2, "the cells of the round before are on disk"
    assert len(open_cells(launch.place / "failed.csv", CELLS)) == 3
