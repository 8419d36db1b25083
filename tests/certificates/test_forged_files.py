"""Files that somebody edited, and files that a kill left half replaced: nothing false becomes official."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securesgd.certificates.record import CertifySettings
from securesgd.certificates.run_certificates import CERTIFICATES, RECORD, SENSITIVITIES, certify_run
from securesgd.certificates.sensitivity import known_sensitivity
from securesgd.data.load import load_data
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.report.run_record import read_run
from securesgd.run import load_run
from securesgd.theory import NORMS, sensitivity
from tests.command_line import run_here

SETTINGS = CertifySettings(draws=256, selection_draws=32, seed=0)
OTHERS = replace(SETTINGS, draws=40, failure_prob=0.2)


@pytest.fixture(scope="module")
def made(finished_run, tmp_path_factory):
    """A run folder with certificates of 24 examples in linf."""
    folder = Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("made") / "run"))
    certify_examples(folder, SETTINGS)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "run"))


def certify_examples(folder, settings=SETTINGS, norms=("linf",), examples=24, **options):
    model = load_run(folder).model
    data = load_data("digits")
    return certify_run(
        folder, model, data.test_inputs, data.test_targets, norms, settings, examples=examples, **options
    )


def table(folder):
    with (folder / CERTIFICATES).open(newline="") as file:
        return list(csv.DictReader(file))


def write_table(folder, rows):
    with (folder / CERTIFICATES).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def edited(folder, column, value, which=3):
    rows = table(folder)
    rows[which][column] = str(value(rows[which]) if callable(value) else value)
    write_table(folder, rows)


def content(folder):
    return {name: (folder / name).read_bytes() for name in (CERTIFICATES, RECORD, SENSITIVITIES)}


FORGERIES = {
    "radius": lambda row: {"radius_tight": "0.8"},
    "radius a little": lambda row: {"radius_tight": repr(float(row["radius_tight"]) * (1 + 1e-6) + 1e-9)},
    "another rule": lambda row: {"radius_classic": "0.8"},
    "published": lambda row: {"radius_as-published": "0.8"},
    "not a number": lambda row: {"radius_tight": "nan"},
    "bounds": lambda row: {"p_lower": "0.9999"},
    "bounds out of range": lambda row: {"p_lower": "1.5"},
    "rounding": lambda row: {"rounding": "0.0"},
    "abstained": lambda row: {"abstained": str(1 - int(row["abstained"]))},
    "draws": lambda row: {"draws": "100000"},
    "label": lambda row: {"label": str((int(row["label"]) + 1) % 10)},
    "example": lambda row: {"index": "4"},
    "answer": lambda row: {"answer": "yes"},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_an_edited_row_is_refused_by_name_and_left_alone(name, folder):
    rows = table(folder)
    rows[3] |= FORGERIES[name](rows[3])
    write_table(folder, rows)
    before = content(folder)
    for examples in (24, 26):
        with pytest.raises(DamagedFileError) as caught:
            certify_examples(folder, examples=examples)
    assert "\n" not in str(caught.value)
    assert CERTIFICATES in str(caught.value)
    if name not in ("bounds out of range", "example"):
        assert ("row 4" if name == "not a number" else "example 3 in linf") in str(caught.value)
    assert content(folder) == before
    if name not in ("label", "rounding", "example"):  # of which a report without torch knows nothing
        record = read_run(folder)
        assert not record.certificates
        assert any(line.startswith("certificates.csv cannot be read") for line in record.missing)


def test_a_forged_sensitivity_is_believed_by_no_command(folder):
    path = folder / SENSITIVITIES
    stored = json.loads(path.read_text())
    stored["norms"]["linf"] |= {name: stored["norms"]["linf"][name] / 10 for name in ("upper", "lower")}
    path.write_text(json.dumps(stored))
    before = content(folder)
    for arguments in (
        ("certify", str(folder), "--examples", "26", "--draws", "256", "--selection-draws", "32"),
        ("attack", str(folder), "--attack", "fgsm", "--examples", "2", "--draws", "20"),
    ):
        refused = run_here(*arguments)
        assert refused.returncode == 2, arguments
        assert "sensitivity.json states" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert content(folder) == before
    assert not (folder / "attacks.csv").exists()
    assert any("Δ" in line and "changed" in line for line in read_run(folder).missing)
    anew = certify_examples(folder, again=True).records["linf"]["sensitivity"]["upper"]
    assert anew == pytest.approx(10 * stored["norms"]["linf"]["upper"])


def test_a_record_that_states_a_smaller_sensitivity_with_radii_that_fit_is_refused(folder):
    """All files of the certificates agree with one another; they do not agree with the layer."""
    records = json.loads((folder / RECORD).read_text())
    records["linf"]["sensitivity"]["upper"] /= 10
    (folder / RECORD).write_text(json.dumps(records))
    rows = table(folder)
    for row in rows:
        for rule in ("tight", "analytic", "extended", "classic"):
            row[f"radius_{rule}"] = repr(10 * float(row[f"radius_{rule}"]))
    write_table(folder, rows)
    with pytest.raises(DamagedFileError, match=r"certificates\.json states Δ in linf as"):
        certify_examples(folder)
    assert not read_run(folder).certificates  # sensitivity.json still says otherwise


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("change", ["upper", "lower", "direction", "proof", "no direction", "no numbers", "step"])
def test_a_forged_proof_proves_nothing(norm, change, folder):
    model = load_run(folder).model
    path = folder / SENSITIVITIES
    exact = known_sensitivity(model, norm, path, again=True)
    stored = json.loads(path.read_text())
    entry = stored["norms"][norm]
    if change in ("proof", "step") and norm == "l1":
        pytest.skip("l1 has a closed form and no stored proof")
    if change in ("upper", "lower"):
        entry[change] *= 0.999
        entry["lower"] *= 0.99  # else the two are not in order
    elif change == "direction":
        entry["direction"] = (0.5 * np.array(entry["direction"])).tolist()
        entry["lower"] *= 0.5
    elif change == "proof":
        entry["proof"] = [0.8 * entry["proof"][0], *entry["proof"][1:]]
        entry["upper"], entry["lower"] = 0.9 * entry["upper"], 0.8 * entry["lower"]
    elif change == "no direction":
        entry["direction"] = [1.0]
    elif change == "no numbers":
        entry["proof"] = entry["direction"] = ["a", None]
    else:
        entry["proof"][-1] = 1e9
    path.write_text(json.dumps(stored))
    with pytest.raises(DamagedFileError, match="--again") as caught:
        known_sensitivity(model, norm, path)
    assert "\n" not in str(caught.value)
    del entry["proof"]  # an entry without a proof is proven anew
    entry["upper"] = entry["lower"] = 1e-3
    path.write_text(json.dumps(stored))
    assert known_sensitivity(model, norm, path).upper == exact.upper


def test_a_kept_proof_gives_the_same_bits_and_a_smaller_one_does_not_pass():
    layer = np.random.default_rng(0).standard_normal((30, 20))
    for norm in NORMS:
        once = sensitivity(layer, norm)
        again = sensitivity(layer, norm, known=once)
        assert (again.upper, again.lower) == (once.upper, once.lower)
        if norm != "l1":
            shrunk = sensitivity(
                layer, norm, known=replace(once, proof=once.proof * np.r_[np.full(len(once.proof) - 1, 0.5), 1])
            )
            assert shrunk.upper >= once.lower


def counted_rows(folder):
    """The settings that the folder's record states, and the rows that count under it."""
    record = json.loads((folder / RECORD).read_text())["linf"]
    shown = read_run(folder).certificates
    return record["settings"]["draws"], {int(row["draws"]) for row in shown if row["norm"] == "linf"}


def test_a_stop_at_any_write_of_a_replacement_leaves_rows_of_one_setting(made, tmp_path, monkeypatch):
    """An exception instead of each file's last step; then both the old and the new command end as if never stopped."""
    base = Path(shutil.copytree(made, tmp_path / "base"))
    certify_examples(base, SETTINGS, again=True, examples=8)
    expected = {}
    for name, settings in (("old", SETTINGS), ("new", OTHERS)):
        whole = Path(shutil.copytree(base, tmp_path / f"whole-{name}"))
        certify_examples(whole, settings, again=True, examples=8)
        expected[name] = (whole / CERTIFICATES).read_bytes()
    monkeypatch.setattr("securesgd.certificates.parts.FIRST_PART", 4)
    monkeypatch.setattr("securesgd.certificates.parts.LARGEST_PART", 4)
    rename, stops = Path.replace, 0
    for stop_at in range(1, 40):
        folder = Path(shutil.copytree(base, tmp_path / f"stopped-{stop_at}"))
        writes = 0

        def stopping(self, target, stop_at=stop_at):
            nonlocal writes
            writes += 1
            if writes == stop_at:
                raise KeyboardInterrupt
            return rename(self, target)

        with monkeypatch.context() as stopped:
            stopped.setattr(Path, "replace", stopping)
            try:
                certify_examples(folder, OTHERS, again=True, examples=8)
                break
            except KeyboardInterrupt:
                stops += 1
        stated, drawn = counted_rows(folder)
        assert drawn <= {stated}, f"write {stop_at}: rows of {drawn} draws under a record of {stated}"
        for name, settings in (("old", SETTINGS), ("new", OTHERS)):
            further = Path(shutil.copytree(folder, tmp_path / f"further-{name}-{stop_at}"))
            try:
                certify_examples(further, settings, examples=8)
            except InvalidInputError:
                certify_examples(further, settings, again=True, examples=8)
            assert (further / CERTIFICATES).read_bytes() == expected[name]
    assert stops >= 5


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
import securesgd.certificates.parts as parts
import securesgd.certificates.stored_certificates as stored
from tests.certificates.test_forged_files import OTHERS, certify_examples
torch.set_num_threads(1)
parts.FIRST_PART = parts.LARGEST_PART = 4
def slow(path, record):
    print("between", flush=True)
    import time; time.sleep(30)
stored.write_json = slow
certify_examples(Path(sys.argv[2]), OTHERS, again=True)
"""


@pytest.mark.slow
def test_a_kill_between_the_two_files_leaves_rows_of_one_setting(folder):
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", KILLED, root, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "between\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stated, drawn = counted_rows(folder)
    assert drawn <= {stated}
    record = certify_examples(folder).records["linf"]
    assert record["examples"] == 24
    assert counted_rows(folder) == (256, {256})


def test_the_record_says_which_noise_it_was_and_for_which_inputs(folder):
    record = json.loads((folder / RECORD).read_text())["linf"]
    assert record["noise"] == "seeded; for a test set fixed beforehand"
    assert record["input_path"] == "traced"
    assert "seed 0" in record["guarantee"]
    with pytest.raises(InvalidInputError, match="seed is None"):
        certify_examples(folder, replace(SETTINGS, seed=None), again=True)
