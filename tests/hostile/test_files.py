"""Run folders that somebody rewrote: what a report and a certification believe without a word."""

import contextlib
import csv
import json
import math

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from securesgd.certificates.recheck import record_digest
from securesgd.certificates.summary import certified_summary
from securesgd.config import run_config
from securesgd.errors import SecureSGDError
from securesgd.privacy.calibration import calibrated_noise_multiplier
from securesgd.report.run_record import read_run
from securesgd.run_training import train_run
from securesgd.runtime.tables import read_rows
from securesgd.theory.certificates import BUILT_IN_RULES, radii_by_rule
from tests.command_line import run_here


def table(folder):
    with (folder / "certificates.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def resealed(folder, rows, change=lambda record: None):
    """Write rows, and a record that says what they say."""
    record = json.loads((folder / "certificates.json").read_text())
    change(record["linf"])
    for row in rows:
        row["record"] = record_digest(record["linf"])
    with (folder / "certificates.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    summary = certified_summary(read_rows(folder / "certificates.csv"))
    record["linf"] |= {"summary": summary, "examples": len(rows)}
    (folder / "certificates.json").write_text(json.dumps(record))


def test_a_run_is_believed_as_it_is(copied_run):
    record = read_run(copied_run)
    assert len(record.certificates) == 6
    assert record.missing == []


def test_a_rule_that_nobody_knows_is_not_shown(copied_run):
    rows = table(copied_run)
    for row in rows:
        row["radius_proven"] = "9.9"
    resealed(copied_run, rows)
    record = read_run(copied_run)
    assert record.certificates == []
    assert any("radius_proven" in line for line in record.missing)


def test_one_example_does_not_count_twice_in_a_report(copied_run):
    rows = table(copied_run)
    resealed(copied_run, rows + [dict(rows[0]) for _ in range(50)])
    record = read_run(copied_run)
    assert record.certificates == []
    assert any("twice" in line for line in record.missing)


def test_a_sensitivity_that_one_record_alone_states_is_remarked(copied_run):
    run = copied_run
    (run / "sensitivity.json").unlink()
    rows, delta = table(run), json.loads((run / "certificates.json").read_text())["linf"]
    upper = delta["sensitivity"]["upper"] / 10
    for row in rows:
        p, q, rounding = (float(row[name]) for name in ("p_lower", "q_upper", "rounding"))
        found = radii_by_rule([p], [q], upper, delta["published_sensitivity"], [rounding])
        row |= {f"radius_{rule}": repr(float(found[rule][0])) for rule in BUILT_IN_RULES}
    resealed(run, rows, lambda record: record["sensitivity"].update(upper=upper))
    assert any("sensitivity.json" in line for line in read_run(run).missing)


def test_results_of_other_weights_are_remarked(copied_run):
    """Certificates and attacks of one run, in the folder of another: the same as other weights under them."""
    path = copied_run / "model.safetensors"
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    save_file({name: 2 * values for name, values in tensors.items()}, path, metadata=metadata)
    missing = read_run(copied_run).missing
    for name in ("certificates.json", "attacks.json"):
        assert any(name in line and "weights" in line for line in missing)


@pytest.mark.parametrize("name", ["certificates.json", "attacks.json"])
def test_a_record_that_does_not_say_whose_it_is_is_remarked(name, copied_run):
    record = json.loads((copied_run / name).read_text())
    for part in [record] if name.startswith("a") else record.values():
        del part["model_file"]
    (copied_run / name).write_text(json.dumps(record))
    assert any(name in line and "weights" in line for line in read_run(copied_run).missing)


@pytest.mark.parametrize(
    ("setting", "code"), [("training.learning_rate=1e308", 2), ("training.delta=1e-320", 0)], ids=["rate", "delta"]
)
def test_a_number_near_the_end_of_its_type_is_no_traceback(setting, code, tmp_path):
    """A learning rate that single precision cannot hold failed after the first release; a tiny delta before it."""
    settings = ("steps=2", "batch_size=32", "copies=1", "accountant=rdp", setting)
    options = [word for chosen in settings for word in ("--set", chosen)]
    out = tmp_path / "run"
    result = run_here("train", "--dataset", "digits", "--method", "dpsgd", "--out", out, *options)
    assert result.returncode in (code, 2)
    assert result.returncode == 0 or (result.stderr.count("\n") == 1 and not out.exists())


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 5e-324), (5e-324, 1e-5), (5e-324, 5e-324)])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibration_to_the_smallest_numbers_answers_or_refuses(epsilon, delta, accountant):
    with contextlib.suppress(SecureSGDError):
        assert 0 < calibrated_noise_multiplier(epsilon, delta, 0.02, 2, accountant=accountant) < math.inf


def test_a_training_that_fails_unexpectedly_before_its_first_release_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OverflowError("of some library")

    monkeypatch.setattr("securesgd.run_training.train_job", fail)
    with pytest.raises(OverflowError):
        train_run(run_config("digits", "dpsgd"), tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []
