"""The report says what is in a run folder, what is missing, and nothing else."""

import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from securesgd.config import run_config
from securesgd.errors import InvalidInputError
from securesgd.report.page import report
from securesgd.report.privacy import _epsilon_text
from securesgd.report.run_record import read_run
from tests.recorded_numbers import ROOT
from tests.report.made_page import DOUBTED, RECHECKED, made


class Links(HTMLParser):
    """Every address a page refers to."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href")]


def test_a_complete_run_says_everything_and_needs_no_network(finished, tmp_path):
    page, missing = made([finished], tmp_path)
    assert missing == []
    record = read_run(finished)
    assert record.statement["in_words"] in page
    assert "Rechecked: replaying the ledger" in page
    for norm in ("linf", "l2"):
        assert record.certificate_records[norm]["guarantee"].split("(rule tight)")[0][:80] in page
    assert "fgsm" in page
    assert "What is not guaranteed" in page
    links = Links()
    links.feed(page)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links.found)
    assert len([link for link in links.found if link.startswith("data:")]) == 2  # attacked images, r
    assert page.count('<svg class="plot"') == 3  # epsilon, linf, l2


def test_every_file_of_a_run_folder_is_documented(finished):
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text()
    assert [path.name for path in finished.iterdir() if f"`{path.name}`" not in page] == []


def test_missing_and_broken_parts_are_named(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / "attacks.json").unlink()
    (folder / "certificates.csv").write_text("nothing")
    (folder / "metrics.jsonl").write_text("{")
    page, missing = made([folder], tmp_path)
    text = " ".join(missing)
    assert "attacks.json is missing" in text
    assert "certificates.csv cannot be read" in text
    assert "metrics.jsonl cannot be read" in text
    assert "Not everything is here" in page
    assert all(line.split(": ", 1)[1][:40] in page for line in missing)


@pytest.mark.parametrize(
    ("file", "change", "doubt"),
    [
        ("model.json", lambda text: text.replace('"epsilon": "inf"', '"epsilon": 0.5'), "does not give this figure"),
        ("model.json", lambda text: text.replace('"delta": 0.0001', '"delta": 1e-09'), "does not give this figure"),
        ("model.json", lambda text: text.replace('"in_words": "D', '"in_words": "Strong d'), "in other words"),
        ("ledger.jsonl", lambda text: "".join(text.splitlines(True)[:1]), "were cut off"),
        ("ledger.jsonl", lambda text: "".join(text.splitlines(True)[:-1]), "were cut off"),
        ("ledger.jsonl", lambda text: text.replace('"noise_multiplier":', '"noise_multiplier":9', 1), "nothing backs"),
        ("ledger.jsonl", None, "nothing backs this figure"),
        ("model.safetensors", None, "whether this is their ledger is not known"),
        ("model.safetensors", lambda _: "junk", "whether this is their ledger is not known"),
    ],
)
def test_a_figure_that_its_ledger_does_not_back_is_not_believed(file, change, doubt, finished, tmp_path):
    assert RECHECKED in made([finished], tmp_path)[0]
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    if change is None:
        (folder / file).unlink()
    else:
        text = (folder / file).read_text(errors="replace")
        assert change(text) != text
        (folder / file).write_text(change(text))
    page, _ = made([folder], tmp_path)
    assert DOUBTED in page
    assert doubt in page
    assert RECHECKED not in page
    assert 'class="good"' not in page


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model.json", "[1, 2]"), ("model.json", '{"statement": []}'),
        ("model.json", '{"statement": {"epsilon": "x"}}'),
        ("certificates.json", "[]"), ("certificates.json", "null"), ("certificates.json", '{"linf": {}}'),
        ("certificates.csv", "norm,index\nlinf,0\n"), ("certificates.csv", "index\n0\n"),
        ("attacks.json", "[]"), ("attacks.json", '{"cells": []}'), ("attacks.json", '{"cells": {"a": {}}}'),
        ("metrics.jsonl", "{}"), ("metrics.jsonl", "3"), ("redistribution.json", "[]"), ("redistribution.json", "null"),
        ("config.toml", 'training = "x"'), ("config.toml", '[training]\nsteps = "many"'), ("environment.json", "[]"),
    ],
)  # fmt: skip
def test_files_of_another_shape_are_named_and_the_rest_is_shown(file, text, finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / file).write_text(text)
    page, missing = made([folder], tmp_path)
    assert any(file.split(".")[0] in line for line in missing)
    assert "Not everything is here" in page


def test_rows_that_were_cut_or_changed_are_noticed(finished, tmp_path):
    for name in ("certificates.csv", "attacks.csv"):
        folder = tmp_path / name.split(".")[0]
        shutil.copytree(finished, folder)
        lines = (folder / name).read_text().splitlines(True)
        (folder / name).write_text("".join(lines[:-1]))
        assert any(name in line for line in made([folder], tmp_path)[1])
    (folder / "attacks.csv").unlink()
    assert any("attacks.csv" in line for line in made([folder], tmp_path)[1])


def test_nothing_is_claimed_about_r_when_its_record_is_gone(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / "redistribution.json").unlink()
    page, missing = made([folder], tmp_path)
    assert any("redistribution.json is missing" in line for line in missing)
    assert "does not look at the private data" not in page
    assert "whether that cost privacy, is not known" in page


def test_epsilon_is_never_rounded_down():
    assert [_epsilon_text(x) for x in (3.0004, 12.34205, 8.0, 7.99997)] == ["3.0004", "12.3421", "8", "8"]
    for epsilon in (100.04, 0.1 + 0.2, 1e-9, 12345.67891):
        assert epsilon <= float(_epsilon_text(epsilon)) <= epsilon + 1e-4 * (1 + 1e-9)


def test_a_check_of_the_certificates_is_shown(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / "falsified-linf.json").write_text('{"rules": {"tight": {"in_words": "2 counter-examples"}}}')
    assert "Rule tight: 2 counter-examples" in made([folder], tmp_path)[0]


@pytest.mark.parametrize("name", ["ledger.jsonl", "model.safetensors", "."])
def test_a_report_replaces_nothing_but_a_report(name, finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InvalidInputError, match=r"is not a report|is a folder"):
        report([folder], folder / name)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):
        report([folder], folder / "report.html")


def test_an_unfinished_run_says_so(tmp_path):
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "config.toml").write_text(run_config("digits", "dpsgd").to_toml())
    page, missing = made([folder], tmp_path)
    assert any("training is not finished" in line for line in missing)
    assert "No statement: training is not finished." in page


def test_a_claim_is_one_sentence_and_the_rest_is_folded(finished, tmp_path):
    page, _ = made([finished], tmp_path)
    statement = read_run(finished).replayed
    privacy = page.split("<h2>Privacy of the training data</h2>")[1]
    assert f"<b>{statement.in_short}</b>" in privacy.split("<details>")[0]
    assert statement.in_words not in privacy.split("<details>")[0]
    assert f"<summary>The full statement</summary><p>{statement.in_words}</p></details>" in page
    assert page.count("<details>") == 6  # statement, what it rests on, linf, l2, configuration, environment
    assert "<details open" not in page


def test_what_is_missing_names_the_command_that_makes_it(finished, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    for name in ("certificates.csv", "certificates.json", "attacks.csv", "attacks.json"):
        (folder / name).unlink()
    page, _ = made([folder], tmp_path)
    for part, command in (("Proven robustness", "certify"), ("Under attack", "attack")):
        assert f"<code>securesgd {command} {folder}" in page.split(f"<h2>{part}</h2>")[1].split("<h2>")[0]
    (folder / "model.json").unlink()
    page, _ = made([folder], tmp_path)
    assert "This run is not finished: nothing is claimed about it yet." in page
    assert f"<code>securesgd train --resume --out {folder}</code>" in page


def test_names_are_not_markup(finished, tmp_path):
    folder = tmp_path / "<script>alert(1)</script>".replace("/", "")
    shutil.copytree(finished, folder)
    page, _ = made([folder, finished], tmp_path)
    assert "<script>" not in page


def test_no_run_folder(tmp_path):
    with pytest.raises(InvalidInputError, match="not a folder"):
        report([tmp_path / "nowhere"], tmp_path / "report.html")
    with pytest.raises(InvalidInputError, match="not a run folder"):
        report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
