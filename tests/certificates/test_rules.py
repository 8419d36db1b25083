"""One row, or one import path, adds a certificate rule everywhere; an unknown one is shown without guarantee."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from securesgd.certificates.certify import certify
from securesgd.certificates.recheck import require_true_radii
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import certificate_rules
from securesgd.certificates.run_certificates import CERTIFICATES, RECORD
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.report.page import report
from securesgd.report.plots import _rule_styles
from securesgd.report.run_record import read_run
from securesgd.run import load_run
from securesgd.runtime.tables import read_rows
from securesgd.theory.certificates import BUILT_IN_RULES, CERTIFICATE_RULES, CertificateRule, rule_caveat
from tests.command_line import run_here

from .closed_forms import linear_input, two_class_linear

W = np.array([1.0, -2.0, 0.5])
PATH = "tests.certificates.test_rules:half_of_tight"
SETTINGS = {"draws": 256, "selection_draws": 32, "seed": 0}
NOTE = "from outside, not rechecked, without guarantee"


def half_of_tight(p, q, sensitivity, rounding):
    return 0.5 * np.asarray(CERTIFICATE_RULES["tight"].radius(p, q, sensitivity, rounding))


def negative(p, q, sensitivity, rounding):
    return -np.ones(len(p))


def failing(p, q, sensitivity, rounding):
    raise KeyError("no\nsuch thing")


@pytest.fixture
def folder(finished_run, tmp_path):
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def added(monkeypatch):
    """A row in the table: the one place."""
    monkeypatch.setitem(CERTIFICATE_RULES, "half", CertificateRule(radius=half_of_tight, is_guarantee=True))


def columns(folder):
    return list(read_rows(folder / CERTIFICATES)[0])


def edited_table(folder, change):
    with (folder / CERTIFICATES).open(newline="") as file:
        rows = [row | change for row in csv.DictReader(file)]
    with (folder / CERTIFICATES).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def test_a_row_of_the_table_is_everywhere(added, folder):
    result = load_run(folder).certify(examples=6, norms=["linf", "l2"], **SETTINGS)
    assert columns(folder)[-6:] == [f"radius_{rule}" for rule in (*BUILT_IN_RULES, "half")]
    for row in result.rows:
        assert row["radius_half"] == pytest.approx(row["radius_tight"] / 2)
    assert list(result.summaries["l2"]["certified_accuracy"]) == [*BUILT_IN_RULES, "half"]
    assert list(_rule_styles(["half", *BUILT_IN_RULES])) == [*BUILT_IN_RULES, "half"]
    shown = run_here(
        "certify", folder, "--examples", "6", "--draws", "256", "--selection-draws", "32", "--rule", "half"
    )
    assert shown.returncode == 0, shown.stderr
    assert "half" in shown.stdout
    refused = run_here("certify", folder, "--rule", "halv")
    assert refused.returncode == 2
    assert "did you mean 'half'? valid: tight, analytic, extended, classic, as-published, half or all" in refused.stderr
    report([folder], folder / "page.html")
    text = (folder / "page.html").read_text()
    assert '<td>half<small class="bad">from outside, without guarantee of this package</small></td>' in text
    assert "<td>tight</td>" in text
    assert '<td>as-published<small class="bad">without guarantee</small></td>' in text
    assert read_run(folder).missing == [line for line in read_run(folder).missing if "attack" in line]


def test_a_row_that_is_added_later_completes_the_rows_that_are_there(folder, monkeypatch):
    load_run(folder).certify(examples=6, norms=["linf", "l2"], **SETTINGS)
    before = read_rows(folder / CERTIFICATES)
    monkeypatch.setitem(CERTIFICATE_RULES, "half", CertificateRule(radius=half_of_tight, is_guarantee=False))
    monkeypatch.setattr("securesgd.certificates.run_certificates.certify", None)  # no draws
    load_run(folder).certify(examples=6, norms=["linf"], **SETTINGS)
    after = read_rows(folder / CERTIFICATES)
    assert [{name: row[name] for name in before[0]} for row in after] == before
    assert all(row["radius_half"] == pytest.approx(row["radius_tight"] / 2) for row in after)
    records = json.loads((folder / RECORD).read_text())
    assert all(record["rules"] == [*BUILT_IN_RULES, "half"] for record in records.values())
    edited_table(folder, {"radius_half": "9"})
    with pytest.raises(DamagedFileError, match="radius_half is 9, but"):
        load_run(folder).certify(examples=6, norms=["linf"], **SETTINGS)


def test_an_import_path_is_computed_stored_and_shown_without_guarantee(folder):
    options = ("--examples", "6", "--draws", "256", "--selection-draws", "32")
    assert run_here("certify", folder, *options).returncode == 0
    shown = run_here("certify", folder, *options, "--rule", PATH)
    assert shown.returncode == 0, shown.stderr
    assert f"Radii by the rule {PATH} are {NOTE}." in " ".join(shown.stdout.split())
    assert columns(folder)[-1] == f"radius_{PATH}"
    stored = read_rows(folder / CERTIFICATES)
    assert all(row[f"radius_{PATH}"] == pytest.approx(row["radius_tight"] / 2) for row in stored)
    assert json.loads((folder / RECORD).read_text())["linf"]["rules"] == [*BUILT_IN_RULES, PATH]
    again = run_here("certify", folder, *options)  # without the rule: kept as it is, and named
    assert again.returncode == 0, again.stderr
    assert "not rechecked" in again.stdout
    assert read_rows(folder / CERTIFICATES) == stored
    report([folder], folder / "page.html")
    assert f'<td>{PATH}<small class="bad">{NOTE}</small></td>' in (folder / "page.html").read_text()
    assert _rule_styles([PATH])[PATH]["label"] == f"{PATH} ({NOTE})"
    more = load_run(folder).certify(examples=8, **SETTINGS)  # which claims nothing by a rule that is not given
    assert [row[f"radius_{PATH}"] for row in more.rows[6:]] == [0.0, 0.0]
    whole = load_run(folder).certify(examples=8, rules=[PATH], **SETTINGS)
    assert all(row[f"radius_{PATH}"] == pytest.approx(row["radius_tight"] / 2) for row in whole.rows)
    load_run(folder).certify(examples=2, again=True, **SETTINGS)
    assert columns(folder)[-1] == "radius_as-published"
    assert json.loads((folder / RECORD).read_text())["linf"]["rules"] == list(BUILT_IN_RULES)


def test_only_what_is_recorded_and_a_radius_is_accepted_from_outside(folder):
    load_run(folder).certify(examples=4, rules=[PATH], **SETTINGS)
    read = read_run(folder)
    assert len(read.certificates) == 4
    edited_table(folder, {f"radius_{PATH}": "-1"})
    with pytest.raises(DamagedFileError, match="a radius is >= 0"):
        load_run(folder).certify(examples=4, **SETTINGS)
    edited_table(folder, {f"radius_{PATH}": "9", "radius_proven": "9"})
    with pytest.raises(DamagedFileError, match=r"a rule that certificates\.json does not record \(radius_proven\)"):
        load_run(folder).certify(examples=4, **SETTINGS)
    assert not read_run(folder).certificates
    record, rows = read.certificate_records["linf"], read.certificates
    for rules in (["tight"], "tight", [3]):
        with pytest.raises(DamagedFileError, match=r"certificates\.json has"):
            require_true_radii(rows, record | {"rules": rules}, "table")
    with pytest.raises(DamagedFileError, match="has no radii by some of the rules"):
        require_true_radii([{k: v for k, v in row.items() if k != "radius_tight"} for row in rows], record, "table")


def test_a_path_in_a_folder_is_not_imported(folder):
    load_run(folder).certify(examples=4, rules=[PATH], **SETTINGS)
    for name in (CERTIFICATES, RECORD):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(PATH, "this:authors"))  # importing it would print a poem
    result = run_here("certify", folder, "--examples", "4", "--draws", "256", "--selection-draws", "32")
    assert result.returncode == 0, result.stderr
    assert "Beautiful" not in result.stdout
    assert rule_caveat("this:authors") == NOTE


@pytest.mark.parametrize("stop_at", range(1, 5))
def test_a_stop_while_a_rule_is_added_can_be_resumed(stop_at, folder, monkeypatch):
    load_run(folder).certify(examples=4, **SETTINGS)
    rename, writes = Path.replace, 0

    def stopping(self, target):
        nonlocal writes
        writes += 1
        if writes == stop_at:
            raise KeyboardInterrupt
        return rename(self, target)

    run = load_run(folder)
    with monkeypatch.context() as stopped:
        stopped.setattr(Path, "replace", stopping)
        with pytest.raises(KeyboardInterrupt):
            run.certify(examples=4, rules=[PATH], **SETTINGS)
    assert len(read_run(folder).certificates) == 4
    run.certify(examples=4, **SETTINGS)
    run.certify(examples=4, rules=[PATH], **SETTINGS)
    assert columns(folder)[-1] == f"radius_{PATH}"


def test_certificates_in_memory_have_the_rule_in_every_norm():
    model, x = two_class_linear(W, 0.3), linear_input(W, 0.9, 0.3)[None]
    settings = CertifySettings(norm="l2", input_range=None, **SETTINGS)
    certificates = certify(model, x, settings, rules=[PATH])
    for shown in (certificates, certificates.in_norm("linf", model)):
        assert shown.radius[PATH] == pytest.approx(shown.radius["tight"] / 2)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("thight", "unknown rule 'thight': did you mean 'tight'.*or an import path"),
        ("no_such_module:rule", "no_such_module cannot be imported"),
        ("tests.certificates.test_rules:nothing", "has no function nothing"),
        ("tests.certificates.test_rules:negative", "numbers that are no radii"),
        ("tests.certificates.test_rules:failing", "failed: KeyError"),
        ("tests.certificates.test_rules:columns", "failed: TypeError"),
    ],
)
def test_what_is_no_rule_is_refused_in_one_line(path, message):
    model, x = two_class_linear(W, 0.3), linear_input(W, 0.9, 0.3)[None]
    with pytest.raises(InvalidInputError, match=message) as caught:
        certify(model, x, CertifySettings(norm="l2", input_range=None, **SETTINGS), rules=[path])
    assert "\n" not in str(caught.value)


def test_the_table_is_not_changed_by_rules_from_outside():
    assert list(certificate_rules([PATH, "tight"])) == [*BUILT_IN_RULES, PATH]
    assert tuple(CERTIFICATE_RULES) == BUILT_IN_RULES
