"""`certify --falsify`: true certificates pass, inflated ones are caught, and the command says so by its exit code."""

import json
import shutil

import numpy as np
import pytest

from securesgd.attacks.falsify import falsify_run
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError
from securesgd.run import load_run
from securesgd.run_training import train_run
from securesgd.runtime.tables import read_rows, write_rows
from securesgd.theory.certificates import radii_by_rule
from tests.command_line import run_here

COMMAND = ("--norm", "l2", "--draws", "500", "--examples", "12", "--falsify")
QUICK = {"restarts": 0, "steps": 10, "eot": 20}


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    train_run(run_config("digits", "secure-sgd", steps=60, batch_size=256, accountant="rdp"), folder)
    done = run_here("certify", folder, *COMMAND)
    assert done.returncode == 0, done.stderr
    assert "rule tight: searched" in done.stdout
    return folder


def test_true_certificates_pass_and_the_record_is_kept(certified):
    record = json.loads((certified / "falsified-l2.json").read_text())
    assert record["sound"]
    assert record["rules"]["tight"]["violations"] == 0
    assert record["rules"]["tight"]["searched"] > 0
    assert set(record["rules"]) == {"tight", "as-published"}


def test_inflated_radii_are_caught(certified, tmp_path):
    model, inputs = load_run(certified).model, load_data("digits").test_inputs
    rows = [row | {"radius_tight": 6 * row["radius_tight"]} for row in read_rows(certified / "certificates.csv")]
    result = falsify_run(tmp_path, model, inputs, rows, certificate_failure_prob=0.001, **QUICK)
    assert not result["sound"]
    assert result["rules"]["tight"]["violations"] > result["allowed"]
    assert "WRONG" in result["rules"]["tight"]["in_words"]


def test_the_command_ends_with_an_error_if_a_certificate_falls(certified, tmp_path):
    folder = tmp_path / "inflated"
    shutil.copytree(certified, folder)
    record = json.loads((folder / "certificates.json").read_text())["l2"]
    upper, published = record["sensitivity"]["upper"], record["published_sensitivity"]
    whole = ("index", "label", "prediction", "abstained", "draws")
    inflated = []
    for row in read_rows(folder / "certificates.csv"):  # radii that follow from bounds no draws have given
        p = 1 - 1e-12
        radii = radii_by_rule(np.array([p]), np.array([1 - p]), upper, published, row["rounding"])
        bounds = {"p_lower": p, "q_upper": 1 - p} | {f"radius_{rule}": float(r[0]) for rule, r in radii.items()}
        inflated.append(row | {name: int(row[name]) for name in whole} | bounds | {"abstained": 0})
    write_rows(folder / "certificates.csv", inflated)
    done = run_here("certify", folder, *COMMAND)
    assert done.returncode == 1
    assert "WRONG" in done.stdout


def test_nothing_to_check(certified, tmp_path):
    model = load_run(certified).model
    with pytest.raises(InvalidInputError, match="no certificates"):
        falsify_run(tmp_path, model, load_data("digits").test_inputs, [], certificate_failure_prob=0.001)
