"""Certificates in the run folder: complete, resumable, never silently replaced; and the command that makes them."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from securesgd.certificates.record import CertifySettings
from securesgd.certificates.run_certificates import CERTIFICATES, RECORD, SENSITIVITIES, certify_run
from securesgd.certificates.sensitivity import fingerprint, known_sensitivity
from securesgd.config import run_config
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.run import load_run
from securesgd.run_training import train_run
from securesgd.runtime.run_folder import locked_folder
from tests.command_line import run_here

SETTINGS = CertifySettings(draws=256, selection_draws=32, seed=0)


@pytest.fixture
def folder(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def certified(folder, digits):
    """Returns a function that certifies the run in the folder."""
    model = load_run(folder).model

    def call(norms=("linf",), settings=SETTINGS, examples=40, **options):
        return certify_run(
            folder, model, digits.test_inputs, digits.test_targets, norms, settings, examples=examples, **options
        )

    return call


def rows(folder, norm="linf"):
    with (folder / CERTIFICATES).open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["norm"] == norm]


def test_files_say_what_was_done(folder, certified, digits):
    record = certified().records["linf"]
    table = rows(folder)
    assert [int(row["index"]) for row in table] == list(range(40))
    assert [int(row["label"]) for row in table] == digits.test_targets[:40].tolist()
    assert record == json.loads((folder / RECORD).read_text())["linf"]
    assert record["settings"]["failure_prob"] == 0.001
    assert record["settings"]["seed"] == 0
    model = load_run(folder).model
    assert record["weights"] == fingerprint(model)
    bound = model.sensitivity("linf")
    assert record["sensitivity"] == {"upper": bound.upper, "lower": bound.lower, "method": bound.method}
    for claim in (
        "at least 0.999",
        "l_inf",
        f"{bound.upper:.6g}",
        "40 test examples",
        "as-published are without guarantee",
    ):
        assert claim in record["guarantee"]


def test_norms_share_the_votes(folder, certified, monkeypatch):
    certified(("linf",))
    monkeypatch.setattr("securesgd.certificates.run_certificates.certify", None)  # no more draws
    certified(("l2", "l1"))
    for a, b, c in zip(rows(folder), rows(folder, "l2"), rows(folder, "l1"), strict=True):
        assert a["p_lower"] == b["p_lower"] == c["p_lower"]
        assert a["q_upper"] == b["q_upper"] == c["q_upper"]
    assert [row["radius_tight"] for row in rows(folder)] != [row["radius_tight"] for row in rows(folder, "l2")]


def test_interrupted_work_goes_on_and_ends_the_same(folder, certified, monkeypatch):
    certified()
    whole = (folder / CERTIFICATES).read_bytes()
    for name in (CERTIFICATES, RECORD):
        (folder / name).unlink()
    monkeypatch.setattr("securesgd.certificates.parts.FIRST_PART", 8)
    monkeypatch.setattr("securesgd.certificates.parts.LARGEST_PART", 8)

    def stop(done, of):
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certified(on_progress=stop)
    assert len(rows(folder)) == 16
    seen = []
    certified(on_progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (24, 24)
    assert (folder / CERTIFICATES).read_bytes() == whole


def test_more_examples_go_on_and_the_same_are_not_made_again(folder, certified, monkeypatch):
    certified(examples=40)
    first = rows(folder)
    certified(examples=60)
    assert rows(folder)[:40] == first
    assert len(rows(folder)) == 60
    monkeypatch.setattr("securesgd.certificates.run_certificates.certify", None)
    assert certified(examples=60).records["linf"]["examples"] == 60


def test_other_settings_are_refused_unless_again(folder, certified):
    certified(examples=10)
    before = (folder / CERTIFICATES).read_bytes()
    for changes in ({"seed": 1}, {"draws": 512}, {"failure_prob": 0.01}, {"radius": 0.01}, {"others": "rest"}):
        with pytest.raises(InvalidInputError, match=r"by other settings.*--again"):
            certified(settings=replace(SETTINGS, **changes), examples=10)
    assert (folder / CERTIFICATES).read_bytes() == before
    certified(("l2",), examples=10)
    record = certified(settings=replace(SETTINGS, seed=1), examples=10, again=True).records["linf"]
    assert record["settings"]["seed"] == 1
    assert (folder / CERTIFICATES).read_bytes() != before
    assert len(rows(folder, "l2")) == 10  # the other norm stays


def test_other_weights_or_data_are_refused(folder, certified, digits):
    certified(examples=5)
    model = load_run(folder).model
    changed = digits.test_inputs.clone()
    changed[0, 0, 0, 0] += 0.25
    with pytest.raises(DamagedFileError, match="made with other data"):
        certify_run(folder, model, changed, digits.test_targets, ["linf"], SETTINGS, examples=5)
    with torch.no_grad():
        list(model.parameters())[-1].add_(0.1)  # not in the noisy layer: Δ is the same, the votes are not
    with pytest.raises(DamagedFileError, match="made with other weights"):
        certify_run(folder, model, digits.test_inputs, digits.test_targets, ["linf"], SETTINGS, examples=5)
    certify_run(folder, model, digits.test_inputs, digits.test_targets, ["linf"], SETTINGS, examples=5, again=True)
    assert json.loads((folder / RECORD).read_text())["linf"]["weights"] == fingerprint(model)


def test_the_proof_of_the_sensitivity_is_found_once(folder, monkeypatch):
    model = load_run(folder).model
    path = folder / SENSITIVITIES
    found = {norm: known_sensitivity(model, norm, path) for norm in ("linf", "l2")}
    with monkeypatch.context() as without:
        for search in ("relaxed_diagonal", "largest_eigenvalue_guess", "polished"):
            without.setattr(sys.modules["securesgd.theory.sensitivity"], search, None)
        for norm, bound in found.items():
            kept = known_sensitivity(model, norm, path)
            assert (kept.upper, kept.lower, kept.method) == (bound.upper, bound.lower, bound.method)
    with torch.no_grad():
        model.noisy.scale.values.mul_(1.01)
    with pytest.raises(DamagedFileError, match=r"made with other weights \(sha256 \w{8}…\) than the model's"):
        known_sensitivity(model, "linf", path)
    assert known_sensitivity(model, "linf", path, again=True).upper > found["linf"].upper


@pytest.mark.parametrize("name", [CERTIFICATES, RECORD, SENSITIVITIES])
@pytest.mark.parametrize("content", ["", "{", "my,own\n1,2\n", '{"linf": 3}'], ids=["empty", "cut", "foreign", "odd"])
def test_damaged_files_are_left_alone(name, content, folder, certified):
    certified(examples=3)
    (folder / name).write_text(content)
    with pytest.raises(DamagedFileError) as caught:
        certified(("linf", "l2"), examples=3)
    assert "\n" not in str(caught.value)
    assert (folder / name).read_text() == content


def test_one_question_is_in_one_norm(certified):
    with pytest.raises(InvalidInputError, match="one norm at a time"):
        certified(("linf", "l2"), replace(SETTINGS, radius=0.01))


def test_command(folder):
    base = ("certify", str(folder), "--examples", "30", "--draws", "300")
    first = run_here(*base, "--norm", "linf,l2")
    assert first.returncode == 0, first.stderr
    assert "certified accuracy in l2, 30 examples" in first.stdout
    assert "For each of 30 test examples, with probability at least 0.999" in first.stdout
    assert (folder / "certificates.png").read_bytes()[:4] == b"\x89PNG"
    again = run_here(*base, "--norm", "l2", "--at-radii", "0.1,0.2", "--json")
    summary = json.loads(again.stdout)["l2"]["summary"]
    assert list(summary["certified_accuracy"]["tight"]) == ["0.1", "0.2"]
    shares = [row for row in rows(folder, "l2") if row["prediction"] == row["label"] and row["abstained"] == "0"]
    proven = sum(float(row["radius_tight"]) >= 0.1 for row in shares) / 30
    assert summary["certified_accuracy"]["tight"]["0.1"]["share"] == pytest.approx(proven)
    assert summary["average_certified_radius"]["tight"] == pytest.approx(
        sum(float(row["radius_tight"]) for row in shares) / 30
    )
    for arguments, message in (
        (("--seed", "3"), "--again"),
        (("--draws", "5", "--again"), "at least 10 draws are needed"),
    ):
        refused = run_here("certify", str(folder), "--examples", "30", *arguments)
        assert refused.returncode == 2, arguments
        assert refused.stderr.count("\n") == 1
        assert message in refused.stderr
        assert len(rows(folder, "l2")) == 30


def test_command_in_two_processes_writes_what_one_writes(folder, launch):
    other = Path(shutil.copytree(folder, launch.place / "other"))
    options = ["--examples", "30", "--draws", "300"]
    assert run_here("certify", str(folder), *options).returncode == 0
    result = launch("certify", "other", *options)
    assert result["codes"] == [0, 0], result["said"]
    assert result["said"].count("certified accuracy") == run_here("certify", str(folder), *options).stdout.count(
        "certified accuracy"
    )
    assert (folder / CERTIFICATES).read_bytes() == (other / CERTIFICATES).read_bytes()


def test_runs_that_cannot_be_certified(tmp_path):
    plain = tmp_path / "plain"
    train_run(run_config("digits", "dpsgd", steps=3, batch_size=100, accountant="rdp", noise_seed=1), plain)
    refused = run_here("certify", str(plain), "--family", "smoothing")
    assert refused.returncode == 2
    assert "without noise in the first layer" in refused.stderr
    (plain / "model.json").unlink()
    unfinished = run_here("certify", str(plain))
    assert unfinished.returncode == 2
    assert "is not finished" in unfinished.stderr
    assert unfinished.stderr.count("\n") == 1


def test_certificates_without_their_record_are_kept_unless_again(folder, certified):
    certified(examples=4)
    (folder / RECORD).unlink()
    before = (folder / CERTIFICATES).read_bytes()
    with pytest.raises(DamagedFileError, match=r"certificates\.json is missing"):
        certified(examples=2)
    assert (folder / CERTIFICATES).read_bytes() == before
    certified(examples=2, again=True)
    assert len(rows(folder)) == 2


def test_two_processes_do_not_certify_one_folder(folder, certified):
    with locked_folder(folder), pytest.raises(InvalidInputError, match="another process"):
        certified(examples=2)
    assert not (folder / CERTIFICATES).exists()
