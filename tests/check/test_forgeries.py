"""Each forgery of a run folder is found by `check`, under the name of the right claim; cheap ones by `report`, too."""

import re
import shutil
import stat

import pytest

from securesgd import load_run
from securesgd.check.folder import check_files
from securesgd.check.outcome import FAIL, OK
from securesgd.run_check import check_run
from tests.check import forging
from tests.command_line import run_here

BY_FILES = {
    forging.cut_ledger: ("ledger of the weights", "privacy"),
    forging.lower_epsilon_in_ledger: ("ledger", "privacy"),
    forging.more_noise_in_ledger: ("ledger of the weights", "privacy"),
    forging.lower_epsilon_in_statement: ("privacy statement", "privacy"),
    forging.flip_weight_bit: ("weights", "accuracy"),
    forging.edit_config: ("configuration", "privacy"),
    forging.comment_in_config: ("configuration", "privacy"),
    forging.unnormalised_redistribution: ("redistribution", None),
    forging.higher_accuracy: ("metrics", "accuracy"),
    forging.larger_radius: ("certificates", "certified"),
    forging.more_votes: ("certificates", "certified"),
    forging.halved_sensitivity: ("sensitivity", "certified"),
    forging.changed_outcome: ("attacks", "attacked"),
    forging.deleted_attack_row: ("attacks", "attacked"),
    forging.doubled_attack_row: ("attacks", "attacked"),
    forging.other_attack_summary: ("attacks", "attacked"),
}
"""Forgery: the claim that fails, and the number of the report that is not believed."""
BY_NETWORK = {
    forging.swap_redistribution: "redistribution of the network",
    forging.higher_counts: "accuracy recomputed",
    forging.unanimous_votes: "certificates recomputed",
    forging.halved_sensitivity_everywhere: "sensitivity of the network",
    forging.attack_votes_that_add_up: "attacks recomputed",
}
"""Forgeries that keep the files consistent: only the network contradicts them."""
TITLES = {"privacy": 0, "accuracy": 1, "certified": 2, "attacked": 3}


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def failed(findings):
    return {finding.claim for finding in findings if finding.outcome == FAIL}


def test_an_untouched_run_passes_and_nothing_is_written(copied_run):
    before = content(copied_run)
    for path in (*copied_run.rglob("*"), copied_run):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    result = check_run(copied_run, examples=None)
    assert result.passed, str(result)
    checked = {finding.claim for finding in result.findings if finding.outcome == OK}
    assert checked >= {"ledger", "report", "model card", "certificates recomputed", "accuracy recomputed"}
    assert content(copied_run) == before


@pytest.mark.parametrize("forge", BY_FILES, ids=lambda forge: forge.__name__)
def test_a_forgery_is_found_in_the_files(forge, copied_run):
    claim, tile = BY_FILES[forge]
    forge(copied_run)
    before = content(copied_run)
    assert claim in failed(check_files(copied_run))
    assert content(copied_run) == before
    reported = run_here("report", copied_run)
    assert reported.returncode == 1
    assert f"not believed run: {claim}: " in reported.stderr
    tiles = (copied_run / "report.html").read_text().split('<div class="number">')[1:5]
    if tile is not None:
        assert "not believed" in tiles[TITLES[tile]]


def test_a_chart_that_was_redrawn_is_found(copied_run):
    page = copied_run / "report.html"
    line = re.search(r'</title><path d="M48 [^"]*"', page.read_text())[0]
    page.write_text(page.read_text().replace(line, line.replace("M48 ", "M48 1L48 ")))
    assert "report" in failed(check_files(copied_run))


@pytest.mark.parametrize("forge", BY_NETWORK, ids=lambda forge: forge.__name__)
def test_a_forgery_that_adds_up_is_found_by_the_network(forge, copied_run):
    forge(copied_run)
    run_here("report", copied_run)  # the forger makes the pages agree
    result = check_run(copied_run, examples=None)
    assert BY_NETWORK[forge] in failed(result.findings), str(result)


@pytest.mark.parametrize(
    ("forge", "claim"), [(forging.edit_report, "report"), (forging.edit_card, "model card")], ids=["report", "card"]
)
def test_an_edited_page_is_found(forge, claim, copied_run):
    forge(copied_run)
    assert failed(check_files(copied_run)) == {claim}


def test_certificates_of_another_run_are_found(copied_run, tmp_path):
    other = tmp_path / "other"
    options = [w for x in ("steps=1", "batch_size=32", "copies=1", "accountant=rdp", "seed=1") for w in ("--set", x)]
    run_here("train", "--dataset", "digits", "--method", "secure-sgd", "--out", other, *options)
    run_here("certify", other, "--draws", "40", "--selection-draws", "10", "--examples", "6")
    for name in ("certificates.csv", "certificates.json", "sensitivity.json"):
        shutil.copy(other / name, copied_run / name)
    assert "certificates" in failed(check_files(copied_run))
    digest = load_run(copied_run).record["weights_sha256"]
    forging.edit_json(copied_run / "certificates.json", lambda records: records["linf"].update(model_file=digest))
    assert {"network", "certificates recomputed"} <= failed(check_run(copied_run).findings)


def test_the_command_says_it_by_lines_json_and_exit_code(copied_run, tmp_path):
    fine = run_here("check", copied_run, "--recompute", "2")
    assert fine.returncode == 0, fine.stdout
    assert "ok             certificates recomputed: " in fine.stdout
    assert "2 of 6 in linf" in fine.stdout
    assert "not checked    environment.json" in fine.stdout
    forging.cut_ledger(copied_run)
    bad = run_here("check", copied_run, "--recompute", "0", "--json")
    assert bad.returncode == 1
    assert '"outcome": "FAIL"' in bad.stdout
    for words in ((tmp_path / "nothing",), (tmp_path,), (copied_run, "--recompute", "some")):
        assert run_here("check", *words).returncode == 2


def test_a_run_checks_itself(copied_run):
    result = load_run(copied_run).check(examples=1)
    assert result.passed, str(result)


def test_missing_evidence_is_said(copied_run):
    (copied_run / "note.txt").write_text("hello")
    (copied_run / "metrics.jsonl").unlink()
    (copied_run / "report.html").unlink()
    lines = {finding.claim: finding for finding in check_run(copied_run, examples=0).findings}
    assert lines["metrics"].outcome == "not checkable"
    assert lines["note.txt"].words == "unknown here"
    (copied_run / "ledger.jsonl").unlink()
    assert {"ledger", "privacy statement"} <= failed(check_files(copied_run))


def test_without_the_test_data_what_takes_them_is_not_checkable(copied_run, monkeypatch):
    from securesgd.errors import InvalidInputError

    def gone(*_):
        raise InvalidInputError("the data are gone; say where they are: --dataset PATH")

    monkeypatch.setattr("securesgd.run.load_run_data", gone)
    lines = {finding.claim: finding for finding in check_run(copied_run).findings}
    for claim in ("test data", "accuracy recomputed", "certificates recomputed", "attacks recomputed"):
        assert lines[claim].outcome == "not checkable"
        assert "--dataset PATH" in lines[claim].words
    assert lines["sensitivity of the network"].outcome == OK
