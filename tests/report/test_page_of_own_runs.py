"""The report of a network and data that only the caller has, and of several runs side by side."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from securesgd.report.charts import compared_charts
from securesgd.report.run_record import read_run
from securesgd.runtime.tables import read_rows
from tests.report.made_page import RECHECKED, made
from tests.report.test_page_numbers import tiles


def test_a_run_of_the_users_own_network_and_data_is_complete(own, tmp_path):
    page, missing = made([own], tmp_path)
    assert missing == []
    assert "<h1>secure-sgd-agm on data in memory</h1>" in page
    assert "A network of the user&#39;s own" in page
    assert "There was no test set when training ended" in page
    assert all("of 4 test images" in label for _, label in tiles(page))
    assert "unknown" not in page[page.index("<body>") :]
    assert RECHECKED in page
    digest = json.loads((own / "model.json").read_text())["structure_sha256"]
    assert f"sha256 of its structure: {digest}" in page
    assert "--network PACKAGE.MODULE:FUNCTION --dataset DATA.npz --seed 1 --again" in page
    assert "securesgd train --config" not in page


def test_a_network_by_import_path_is_named_in_the_commands_and_never_imported(own, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(own, folder)
    text = (folder / "config.toml").read_text()
    text = text.replace('dataset = "in-memory"', 'dataset = "no_such_module:data"')
    (folder / "config.toml").write_text(text.replace('network = "own"', 'network = "no_such_module:network"'))
    page, missing = made([folder], tmp_path)
    assert missing == []
    assert "Network no_such_module:network" in page
    assert "--network no_such_module:network --dataset no_such_module:data" in page
    assert "securesgd train --config" in page


@pytest.mark.parametrize("network", ["own", {"name": "own", "structure_sha256": "12ab"}])
def test_without_its_configuration_a_run_is_described_by_its_model_record(network, own, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(own, folder)
    (folder / "config.toml").unlink()
    record = json.loads((folder / "model.json").read_text())
    if isinstance(network, dict):
        del record["structure_sha256"]
    (folder / "model.json").write_text(json.dumps(record | {"network": network}))
    page, missing = made([folder], tmp_path)
    assert [line for line in missing if "config.toml" in line]
    assert "<h1>secure-sgd-agm on data in memory</h1>" in page
    assert "A network of the user&#39;s own" in page
    assert f"sha256 of its structure: {'12ab' if isinstance(network, dict) else record['structure_sha256']}" in page
    (folder / "model.json").unlink()
    assert "<h1>run copy</h1>" in made([folder], tmp_path)[0]


def test_model_json_says_that_a_run_is_finished(own, tmp_path):
    """Not environment.json, whose absence only leaves the versions unknown."""
    folder = tmp_path / "copy"
    shutil.copytree(own, folder)
    (folder / "environment.json").unlink()
    page, missing = made([folder], tmp_path)
    assert [line.split(": ", 1)[1] for line in missing] == [
        "environment.json is missing: versions and machine are not known"
    ]
    assert RECHECKED in page


def test_a_way_from_outside_is_not_vouched_for(own, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(own, folder)
    assert "It does not look at the private data." in made([folder], tmp_path)[0]
    record = json.loads((folder / "redistribution.json").read_text())
    (folder / "redistribution.json").write_text(json.dumps(record | {"way": "mine.ways:edges"}))
    page = made([folder], tmp_path)[0]
    assert "shared out by mine.ways:edges r. It comes from outside this package" in page
    assert "It does not look at the private data." not in page


def test_attacks_and_rules_from_outside_are_shown(own, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(own, folder)
    text = (folder / "attacks.json").read_text().replace('"attack": "fgsm"', '"attack": "mine.attacks:shift"')
    (folder / "attacks.json").write_text(text)
    assert "<tr><td>mine.attacks:shift</td>" in made([folder], tmp_path)[0]


def test_several_runs_are_compared(finished, own, tmp_path):
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    page, _ = made([finished, other], tmp_path)
    assert "2 runs side by side" in page
    assert page.count("<article") == 2
    assert "All settings are the same." in page
    page, _ = made([finished, own], tmp_path)
    table = page.split("<h2>Comparison</h2>")[1].split("</table>")[0]
    rows = dict(re.findall(r'<tr class="differing"><td>(.*?)</td>(.*?)</tr>', table))
    assert rows["training.steps"] == '<td>20</td><td class="differs">3</td>'
    assert rows["method"] == '<td>secure-sgd</td><td class="differs">secure-sgd-agm</td>'
    assert "training.delta" not in rows  # both 0.0001
    assert "training.delta" in page.split("settings that are the same")[1].split("</table>")[0]
    right = dict(re.findall(r"<tr><td>(.*?)</td>(.*?)</tr>", table))["images of the next four"]
    assert right == "<td>10</td><td>4</td>"
    assert "Comparison" not in made([finished], tmp_path)[0]


def test_headings_of_one_and_of_several_runs_are_in_order(finished, own, tmp_path):
    for folders in ([finished], [finished, own]):
        levels = [int(level) for level in re.findall(r"<h(\d)>", made(folders, tmp_path)[0])]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(later <= before + 1 for before, later in pairwise(levels))


def test_runs_of_one_name_are_told_apart(finished, tmp_path):
    other = tmp_path / "elsewhere" / finished.name
    shutil.copytree(finished, other)
    page, _ = made([finished, other], tmp_path)
    for folder in (finished, other):
        assert f">{folder}</a>" in page


def test_joint_charts_have_a_line_for_each_run(finished):
    rows, ledger = read_rows(finished / "certificates.csv"), read_run(finished).ledger
    two = {"one": rows, "two": [row for row in rows if row["norm"] == "l2"]}
    l2, budget = compared_charts(two, {}, {"one": ledger, "two": ledger})  # linf: one run alone
    assert [line.label for line in l2.lines] == ["one: by smoothing, 20 examples", "two: by smoothing, 20 examples"]
    right = [row for row in rows if row["norm"] == "l2" and not row["abstained"] and row["prediction"] == row["label"]]
    for line in l2.lines:
        assert line.corners[0] == (0.0, len(right) / 20)
        assert line.corners[-1] == (max(row["radius_tight"] for row in right), 0.0)
    assert [line.corners[-1][0] for line in budget.lines] == [20, 20]
