"""The two programs of docs/how-to/opacus.md: the same epsilon, and models of the same worth."""

import importlib.util
import warnings
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "opacus_program.py"


def compare(steps, seed=0):
    spec = importlib.util.spec_from_file_location("opacus_program", PATH)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus: no secure mode, backward hooks
        return program.compare(steps, seed)


def test_both_programs_have_the_same_epsilon():
    epsilon = compare(12)["epsilon"]
    assert epsilon["opacus"] == pytest.approx(epsilon["securesgd"], rel=0.01)
    assert 0.5 < epsilon["securesgd"] < 3


@pytest.mark.slow
def test_both_programs_train_models_of_the_same_worth():
    """One training moves by 0.02 from seed to seed; without noise, or with half the steps, by 0.1 and more."""
    rows = [compare(60, seed)["accuracy"] for seed in range(3)]
    ours, theirs = (sum(row[name] for row in rows) / 3 for name in ("securesgd", "opacus"))
    assert abs(ours - theirs) < 0.06
    assert min(ours, theirs) > 0.8
