"""A redistribution from outside: one row or one import path, and it is in the choices, the run and the report."""

import json

import numpy as np
import pytest

from securesgd.config import RobustnessSettings
from securesgd.errors import InvalidInputError
from securesgd.models.redistribution import WAYS, Redistribution, Way, redistribution_way
from tests.command_line import run_here

SMALL = ("steps=2", "batch_size=32", "copies=1", "accountant=rdp", "noise_seed=3")


def ramp(shape, seed):
    r = np.linspace(1, 3, int(np.prod(shape)))
    return Redistribution(way="ramp", shape=shape, per="unit", r=tuple(r / r.sum()), details={})


def shares(shape, seed):
    return np.linspace(1, 3, int(np.prod(shape)))


def negative(shape, seed):
    return -shares(shape, seed)


def few(shape, seed):
    return [1.0, 2.0]


def train(folder, way):
    options = [word for setting in (*SMALL, f"redistribution={way}") for word in ("--set", setting)]
    return run_here("train", "--dataset", "digits", "--method", "secure-sgd", "--out", folder, *options)


@pytest.mark.parametrize("way", ["ramp", "tests.models.test_outside_redistribution:shares"])
def test_one_place_adds_a_way(way, tmp_path, monkeypatch):
    monkeypatch.setitem(WAYS, "ramp", Way(first=ramp))
    unknown = train(tmp_path / "typo", "rampp")
    assert unknown.returncode == 2
    assert "ramp" in unknown.stderr.split("rampp", 1)[1]
    result = train(tmp_path / "run", way)
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "run" / "redistribution.json").read_text())
    assert record["way"] == way
    assert record["r"] == pytest.approx(np.linspace(1, 3, 64) / 128, rel=1e-5)
    certify = run_here("certify", tmp_path / "run", "--draws", "40", "--selection-draws", "10", "--examples", "4")
    assert certify.returncode == 0, certify.stderr
    assert run_here("report", tmp_path / "run").returncode == 0
    assert way in (tmp_path / "run" / "report.html").read_text()


def test_what_is_no_redistribution_is_refused(tmp_path):
    here = "tests.models.test_outside_redistribution"
    for name, words in (
        ("negative", "a positive number for each unit"),
        ("few", "each unit"),
        ("absent", "no function"),
    ):
        result = train(tmp_path / "run", f"{here}:{name}")
        assert result.returncode == 2
        assert words in result.stderr
        assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidInputError, match="a way without data"):
        Way(learned=True).initial((1, 8, 8), "private", 0)
    with pytest.raises(InvalidInputError, match="unknown start 'private'"):
        RobustnessSettings(start="private")
    assert redistribution_way("learned").learned
