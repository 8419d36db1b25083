"""What `check` and the report make of audit.json, and of a run whose settings were searched for."""

import json

import pytest

from securesgd.audit.bounds import box_bounds, largest_bound
from securesgd.audit.claim import Claim
from securesgd.check.folder import check_files
from securesgd.check.outcome import FAIL, OK
from securesgd.config import run_config
from securesgd.run_check import check_run
from securesgd.tuning import tune
from tests.check.forging import edit_json
from tests.command_line import run_here


@pytest.fixture
def audited(copied_run):
    result = run_here("audit", copied_run, "--canaries", "400", "--seed", "1")
    assert result.returncode == 0, result.stderr
    return copied_run


def of_audit(folder):
    return next(finding for finding in check_files(folder) if finding.claim == "audit")


def test_an_audit_is_recomputed_from_its_counts_and_shown_in_the_report(audited):
    assert of_audit(audited).outcome == OK, of_audit(audited)
    result = run_here("report", audited)
    assert result.returncode == 0, result.stderr
    page = (audited / "report.html").read_text()
    record = json.loads((audited / "audit.json").read_text())
    assert "What an attacker could measure" in page
    assert f"<td>{record['white_box']['guesses']}</td><td>{record['white_box']['right']}</td>" in page


def strong(record):
    """More right guesses than a tiny audit has by itself, so that there is a bound to forge."""
    claim, guesses = Claim(**record["claim"]), record["white_box"]["guesses"]
    canaries = record["white_box"]["canaries"]
    record["white_box"] = box_bounds("white_box", canaries, guesses - 1, claim, 1 - record["confidence"])
    record["epsilon_lower_bound"] = largest_bound(record)
    assert 0 < record["epsilon_lower_bound"] <= claim.epsilon


def half_right(record):
    record["white_box"]["right"] //= 2


def lower_bound(record):
    record["white_box"]["tradeoff"] = record["epsilon_lower_bound"] = 0.0


def other_claim(record):
    record["claim"]["epsilon"] *= 2


def more_confident(record):
    record["confidence"] = 0.999


def broken_training(record):
    record["sabotage"] = "half-noise"


def never_inserted(record):
    record["inserted"] = False


@pytest.mark.parametrize(
    "forge", [half_right, lower_bound, other_claim, more_confident, broken_training, never_inserted]
)
def test_a_forged_audit_is_found(forge, audited):
    edit_json(audited / "audit.json", strong)
    assert of_audit(audited).outcome == OK, of_audit(audited)
    edit_json(audited / "audit.json", forge)
    assert of_audit(audited).outcome == FAIL
    assert run_here("report", audited).returncode == 1


def test_an_audit_that_contradicts_the_claim_is_a_failure(audited):
    def contradict(record):
        record["canaries"]["weights"] = 200_000
        canaries = 200_000 + record["canaries"]["biases"]
        claim = Claim(**record["claim"])
        record["white_box"] = box_bounds("white_box", canaries, round(0.05 * canaries), claim, 1 - record["confidence"])
        record["epsilon_lower_bound"] = largest_bound(record)
        record["holds"] = record["epsilon_lower_bound"] <= claim.epsilon

    edit_json(audited / "audit.json", contradict)
    finding = of_audit(audited)
    assert finding.outcome == FAIL
    assert "contradicts the claimed epsilon" in finding.words


def test_a_run_whose_settings_were_searched_for_passes(tmp_path):
    settings = {"steps": 2, "batch_size": 32, "copies": 1, "network": "mlp", "delta": 1e-4}
    base = run_config("digits", "dpsgd", epsilon=8.0, holdout=100, **settings)
    tune(base, out=tmp_path / "run", tries={"learning_rate": [0.1, 1.0], "batch_size": [16, 32]}, trials_mean=1.5)
    result = check_run(tmp_path / "run")
    assert result.passed, str(result)
