"""A forger who has read the check: what no file contradicts, and folders made to crash the check or to speak for it."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from securesgd.attacks.robust_accuracy import attack_summary
from securesgd.certificates.recheck import record_digest
from securesgd.check.folder import check_files
from securesgd.check.manifest import create_key, sign_folder
from securesgd.check.outcome import FAIL, NOT_CHECKED, OK
from securesgd.errors import DamagedFileError
from securesgd.run_check import check_run
from securesgd.runtime.storage import file_digest
from securesgd.runtime.tables import read_rows
from tests.check.forging import edit_json, edit_rows, edit_text, larger_radius, unanimous_votes
from tests.command_line import run_here

SMALL = [word for setting in ("steps=2", "batch_size=32", "accountant=rdp") for word in ("--set", setting)]


@pytest.fixture(scope="module")
def interval_run(tmp_path_factory):
    """A run without noise at its inputs: its certificates are by intervals."""
    folder = tmp_path_factory.mktemp("interval") / "run"
    for command in (
        ("train", "--dataset", "digits", "--method", "dp-ibp", "--out", folder, *SMALL),
        ("certify", folder, "--examples", "4"),
        ("attack", folder, "--attack", "fgsm", "--budget", "0.05", "--examples", "4", "--no-probes"),
    ):
        result = run_here(*command)
        assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def without_noise(interval_run, tmp_path):
    return Path(shutil.copytree(interval_run, tmp_path / "run"))


def failures(folder):
    """The claims that fail, and why; the forger makes the pages agree first."""
    run_here("report", folder)
    return {finding.claim: finding.words for finding in check_run(folder, examples=None).failures}


def accuracy_without_counts(folder):
    path = folder / "metrics.jsonl"
    line = json.loads(path.read_text()) | {"test_accuracy": 0.99, "test_balance": None}
    path.write_text(json.dumps(line) + "\n")


def statement_of_an_earlier_accountant(folder):
    words = {"accountant_version": "dp-accounting 0.1", "in_words": "(0.01, 1e-9)-differentially private."}
    edit_json(folder / "model.json", lambda model: model["statement"].update(words))


def one_more_promise_of_an_earlier_accountant(folder):
    def change(model):
        statement = model["statement"]
        version = statement["accountant_version"]
        statement["in_words"] = statement["in_words"].replace(version, "dp-accounting 0.1")
        statement.update(accountant_version="dp-accounting 0.1", group_epsilon=0.1)

    edit_json(folder / "model.json", change)


def size_of_something_else(folder):
    edit_text(folder / "model.json", '"holdout": 0', '"hol$out": 0')


def results_without_a_record(folder):
    larger_radius(folder)
    for name in ("model.json", "report.html", "MODEL_CARD.md"):
        (folder / name).unlink()


def counted_again(folder):
    """Make the summary of attacks.json follow from the rows."""
    rows = [{k: "" if v is None else v for k, v in row.items()} for row in read_rows(folder / "attacks.csv")]

    def change(content):
        cell = next(iter(content["cells"].values()))
        failure = cell["measured"]["failure_prob"]
        certificates = failure if rows[0]["draws"] > 1 else 0.0
        cell["summary"] = attack_summary(rows, classes=10, failure_prob=failure, certificate_failure_prob=certificates)

    edit_json(folder / "attacks.json", change)


def radii_beside_an_attack(folder):
    names = ("clean_radius", "radius")
    edit_rows(folder / "attacks.csv", lambda rows: [row | dict.fromkeys(names, "0.3") for row in rows])
    counted_again(folder)


def published_radii_beside_an_attack(folder):
    names = ("clean_radius_published", "radius_published")
    edit_rows(folder / "attacks.csv", lambda rows: [row | dict.fromkeys(names, "0.3") for row in rows])
    counted_again(folder)


def invented_warning(folder):
    warning = {"name": "gradients", "attack": "fgsm", "words": "nothing is wrong with this attack"}
    edit_json(folder / "attacks.json", lambda content: content["suspicions"].append(warning))


FORGERIES = {
    accuracy_without_counts: "accuracy recomputed",
    statement_of_an_earlier_accountant: "privacy statement",
    one_more_promise_of_an_earlier_accountant: "privacy statement",
    size_of_something_else: "model record",
    results_without_a_record: "certificates",
    radii_beside_an_attack: "attacks recomputed",
    published_radii_beside_an_attack: "attacks recomputed",
    invented_warning: "attacks recomputed",
}


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forgery_beyond_the_files_is_found(forge, copied_run):
    forge(copied_run)
    assert FORGERIES[forge] in failures(copied_run)


def test_radii_by_intervals_beside_an_attack_are_proven_again(without_noise):
    assert failures(without_noise) == {}
    radii_beside_an_attack(without_noise)
    assert "the network proves at most" in failures(without_noise)["attacks recomputed"]


def of_other_examples(folder):
    """Certificates that nobody here can repeat, as their examples are not here."""
    path = folder / "certificates.json"
    records = json.loads(path.read_text())
    records["linf"]["data"] = "0" * 64
    path.write_text(json.dumps(records, indent=2))
    digest = record_digest(records["linf"])
    edit_rows(folder / "certificates.csv", lambda rows: [row | {"record": digest} for row in rows])


def test_certificates_of_other_examples_are_said_to_be_not_checkable(copied_run):
    unanimous_votes(copied_run)
    of_other_examples(copied_run)
    assert failures(copied_run) == {}
    lines = {finding.claim: finding for finding in check_run(copied_run).findings}
    assert "not the run's own test set" in lines["certificates"].words
    assert lines["certificates recomputed"].outcome == "not checkable"


def test_certificates_of_other_examples_do_not_hide_forged_ones(copied_run):
    """One record that cannot be checked comes first, the forged one after it."""
    result = run_here(
        "certify", copied_run, "--norm", "l2", "--draws", "40", "--selection-draws", "10", "--examples", "6"
    )
    assert result.returncode == 0, result.stderr
    table = copied_run / "certificates.csv"
    path = copied_run / "certificates.json"
    records = json.loads(path.read_text())
    records["linf"]["data"] = "0" * 64
    digest = record_digest(records["linf"])
    path.write_text(json.dumps({name: records[name] for name in ("linf", "l2")}, indent=2))

    def change(rows):
        for row in rows:
            if row["norm"] == "linf":
                row["record"] = digest
            else:
                row["label"] = row["prediction"] = str((int(float(row["label"])) + 1) % 10)

    edit_rows(table, change)
    assert "certificates recomputed" in failures(copied_run)


def test_a_range_without_the_examples_proves_nothing(without_noise):
    """Within a range of one point nothing can change, so that every radius would be proven."""
    path, table = without_noise / "certificates.json", without_noise / "certificates.csv"
    records = json.loads(path.read_text())
    records["interval"]["settings"]["input_range"] = [0.5, 0.50001]
    digest = record_digest(records["interval"])
    path.write_text(json.dumps(records, indent=2))
    edit_rows(table, lambda rows: [row | {"record": digest} for row in rows])
    assert "outside 0.5..0.50001" in failures(without_noise)["certificates recomputed"]


@pytest.mark.parametrize("field", ["date", "name", "shown", "called"])
def test_a_report_does_not_claim_by_its_date_or_name(field, copied_run):
    path = copied_run / "report.html"
    text = path.read_text()
    stated = re.search(rf'"{field}": ?"([^"]*)"', text).group(1)
    path.write_text(text.replace(stated, f"{stated}{' epsilon is 0.01' * 20}"))
    assert "report" in {finding.claim for finding in check_files(copied_run) if finding.outcome == FAIL}


def test_no_file_name_speaks_for_the_check(copied_run):
    (copied_run / "x\nok             signature: signed by all of us").write_text("")
    Path(os.fsdecode(os.fsencode(copied_run) + b"/\xff\x1b[2J.txt")).write_text("")
    result = run_here("check", copied_run, "--recompute", "0")
    assert result.returncode == 0, result.stdout
    assert "\x1b" not in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.startswith("ok             signature")]
    assert sum(line.startswith(NOT_CHECKED) and "unknown here" in line for line in result.stdout.splitlines()) == 2


def test_certificates_by_votes_of_a_network_without_noise_are_no_traceback(without_noise, tiny_run):
    for name in ("certificates.csv", "certificates.json", "sensitivity.json"):
        shutil.copy(tiny_run / name, without_noise / name)
    digest = file_digest(without_noise / "model.safetensors")
    edit_json(without_noise / "certificates.json", lambda records: records["linf"].update(model_file=digest))
    assert "the network has no noise" in failures(without_noise)["certificates recomputed"]


def test_draws_beyond_any_memory_are_refused(copied_run):
    path = copied_run / "certificates.json"
    records = json.loads(path.read_text())
    records["linf"]["settings"]["draws"] = 10**15
    path.write_text(json.dumps(records, indent=2))
    digest = record_digest(records["linf"])
    edit_rows(copied_run / "certificates.csv", lambda rows: [row | {"record": digest} for row in rows])
    assert "certificates" in failures(copied_run)


def test_a_link_to_a_folder_is_not_signed(copied_run, tmp_path):
    create_key(tmp_path / "me.key")
    sign_folder(copied_run, tmp_path / "me.key")
    (tmp_path / "elsewhere").mkdir()
    (copied_run / "attacked-images").symlink_to(tmp_path / "elsewhere")
    finding = next(finding for finding in check_files(copied_run) if finding.claim == "signature")
    assert finding.outcome == FAIL
    with pytest.raises(DamagedFileError, match="link to a folder"):
        sign_folder(copied_run, tmp_path / "me.key")


def test_an_interrupted_attack_is_no_forgery(copied_run):
    """Rows of a part are there, and the summary is written at the end."""
    edit_json(copied_run / "attacks.json", lambda content: next(iter(content["cells"].values())).pop("summary"))
    run_here("report", copied_run)
    lines = {finding.claim: finding for finding in check_run(copied_run).findings}
    assert lines["attacks"].outcome == lines["attacks recomputed"].outcome == OK, lines
