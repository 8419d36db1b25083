"""The report says what is in a run folder, what is missing, and nothing else."""

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import securesgd as ss
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError
from securesgd.privacy import run_statement, statement_rows
from securesgd.report.charts import compared_charts
from securesgd.report.page import report
from securesgd.report.privacy import _epsilon_text
from securesgd.report.run_record import read_run
from securesgd.run_training import train_run
from securesgd.runtime.tables import read_rows
from tests.command_line import run_here
from tests.recorded_numbers import NUMBER, ROOT, is_there


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run, certified and attacked."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    train_run(
        run_config("digits", "secure-sgd", steps=20, batch_size=128, copies=1, noise_seed=3, accountant="rdp"), folder
    )
    for command in (
        ["certify", folder, "--norm", "linf,l2", "--draws", "200", "--examples", "20"],
        [
            "attack",
            folder,
            "--attack",
            "fgsm",
            "--budget",
            "0.05",
            "--examples",
            "10",
            "--eot",
            "2",
            "--draws",
            "50",
            "--certify-draws",
            "100",
            "--no-probes",
        ],
    ):
        done = run_here(*map(str, command))
        assert done.returncode in (0, 1), done.stderr
    return folder


def made(folders, tmp_path):
    missing = report(folders, tmp_path / "report.html").missing
    return (tmp_path / "report.html").read_text(encoding="utf-8"), missing


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


def measured_sets(folder):
    """By examples and title of the table of classes, but for the test set: (index, label, counts) of each row."""
    certificates, attacks = (read_rows(folder / name) for name in ("certificates.csv", "attacks.csv"))
    sets = {}
    for norm, radius in (("linf", 0.05), ("l2", 0.75)):
        rows = [row for row in certificates if row["norm"] == norm]
        right = [not row["abstained"] and row["prediction"] == row["label"] for row in rows]
        proven = [ok and row["radius_tight"] >= radius for ok, row in zip(right, rows, strict=True)]
        for title, counts in (("right", right), (f"right and proven at {radius}", proven)):
            ids = ((row["index"], row["label"]) for row in rows)
            sets[f"certified, {norm}", title] = [(*x, ok) for x, ok in zip(ids, counts, strict=True)]
    for title, prefix in {"before": "clean_", "under fgsm, linf 0.05": ""}.items():
        sets["attacked images", title] = [
            (row["index"], row["label"], row[f"{prefix}label_votes"] > row[f"{prefix}other_votes"]) for row in attacks
        ]
    return sets


def by_class(rows):
    """The texts of recall by class, in the order of the ten digits, and of always giving one answer."""
    right = {digit: [ok for _, label, ok in rows if label == digit] for digit in range(10)}
    recall = [f"{sum(oks) / len(oks):.3f}" if oks else "–" for oks in right.values()]
    return [*recall, f"{max(map(len, right.values())) / len(rows):.3f}"]


def tiles(page):
    """(number, label) of each tile but epsilon."""
    return re.findall(r'<div class="number"><b[^>]*>(.*?)</b><span>(.*?)</span>', page)[1:]


def test_the_table_of_classes_is_counted_in_the_rows(finished, tmp_path):
    table = made([finished], tmp_path)[0].split("<h2>Accuracy</h2>")[1].split("</table>")[0]
    assert re.findall(r'colspan="(\d)">(.*?)</th>', table) == [
        ("2", "whole test set"), ("2", "certified, linf"), ("2", "certified, l2"), ("2", "attacked images")
    ]  # fmt: skip
    _, titles, everything, one_answer, *classes = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL)
        for line in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    ]
    assert [line[0] for line in classes] == [str(digit) for digit in range(10)]
    sets = measured_sets(finished)
    assert titles[1:] == ["recall", "precision", *(title for _, title in sets)]
    for column, rows in enumerate(sets.values(), start=3):
        cells = [line[column].split("<small>")[0] for line in [*classes, one_answer]]
        assert cells == by_class(rows)
        assert everything[column].startswith(f"{sum(right for *_, right in rows) / len(rows):.3f}<small>")
        assert everything[column].endswith(f"<small>of {len(rows)}</small>")
    metrics = json.loads((finished / "metrics.jsonl").read_text())
    assert everything[1].startswith(f"{metrics['test_accuracy']:.3f}<small>")
    assert sum(int(re.search(r"of (\d+)", line[1])[1]) for line in classes) == metrics["test_images"]
    for line, counted in zip(classes, metrics["test_balance"]["classes"], strict=True):
        answers, right = counted["answers"], counted["right"]
        assert line[2] == (f"{right / answers:.3f}<small>of {answers} answers</small>" if answers else "–")


def test_the_tiles_are_about_the_images_that_were_certified_and_attacked(finished, tmp_path):
    """20 examples have certificates, the first 10 of them were attacked."""
    certificates, attacks = (read_rows(finished / name) for name in ("certificates.csv", "attacks.csv"))
    same = {row["index"] for row in attacks}
    assert len(same) == 10
    proven = [
        row["prediction"] == row["label"] and not row["abstained"] and row["radius_tight"] >= 0.05
        for row in certificates
        if row["norm"] == "linf" and row["index"] in same
    ]
    sets = measured_sets(finished)
    before, after = (sets["attacked images", title] for title in ("before", "under fgsm, linf 0.05"))
    numbers = [[right for *_, right in before], proven, [right for *_, right in after]]
    shown = tiles(made([finished], tmp_path)[0])
    assert [number for number, _ in shown] == [f"{sum(hits) / 10:.3f}" for hits in numbers]
    assert all("of 10 test images" in label for _, label in shown)
    assert "proven at linf 0.05," in shown[1][1]
    assert "(fgsm, linf 0.05)" in shown[2][1]


@pytest.mark.parametrize("without", ["certificates", "attacks"])
def test_without_one_of_them_the_tiles_are_about_the_other(without, finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    for name in (f"{without}.csv", f"{without}.json"):
        (folder / name).unlink()
    right, certified, attacked = tiles(made([folder], tmp_path)[0])
    title, count = (
        (("attacked images", "before"), 10) if without == "certificates" else (("certified, linf", "right"), 20)
    )
    assert right[0] == f"{sum(ok for *_, ok in measured_sets(finished)[title]) / count:.3f}"
    assert f"of {count} test images" in right[1]
    if without == "certificates":
        assert certified == ("none", "certified accuracy")
        assert "of 10 test images" in attacked[1]
    else:
        assert attacked == ("not attacked", "accuracy under attack")
        assert "of 20 test images" in certified[1]


def test_certificates_and_attacks_of_two_test_sets_are_not_mixed_in_the_tiles(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    record = json.loads((folder / "attacks.json").read_text())
    for cell in record["cells"].values():
        cell["data"] = "of another test set"
    (folder / "attacks.json").write_text(json.dumps(record))
    page, missing = made([folder], tmp_path)
    assert any("other examples than the run" in line for line in missing)
    right, certified, attacked = tiles(page)
    assert "of 20 test images" in right[1]
    assert "of 20 test images" in certified[1]
    assert attacked == ("–", "right under the worst attack (fgsm, linf 0.05), of other images: see below")


def test_the_tile_of_a_run_that_was_only_trained_is_about_the_whole_test_set(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    for name in ("certificates.csv", "certificates.json", "attacks.csv", "attacks.json"):
        (folder / name).unlink()
    metrics = json.loads((folder / "metrics.jsonl").read_text())
    accuracy, certified, attacked = tiles(made([folder], tmp_path)[0])
    assert accuracy == (f"{metrics['test_accuracy']:.4f}", f"accuracy on {metrics['test_images']} test images")
    assert (certified[0], attacked[0]) == ("none", "not attacked")


@pytest.mark.parametrize("cell", ["1e300", "0.5", "-3", "cat", ""])
def test_a_class_that_cannot_be_is_named_and_the_rest_is_shown(cell, finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    lines = [line.split(",") for line in (folder / "attacks.csv").read_text().splitlines()]
    lines[1][lines[0].index("label")] = cell
    (folder / "attacks.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    page, missing = made([folder], tmp_path)
    assert any("attacks.csv" in line for line in missing)
    assert "<td>fgsm</td>" in page


def test_every_number_of_the_page_is_in_the_records_of_the_run(finished, tmp_path):
    page, _ = made([finished], tmp_path)
    text = re.sub(r"<(style|pre|header|h2|svg)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    found = NUMBER.findall(text.replace("&#39;", "'").replace("–", " "))
    assert len(found) > 80
    counted = set().union(*(by_class(rows) for rows in measured_sets(finished).values()))
    stated = json.dumps(statement_rows(run_statement(finished)))  # tests/privacy/test_full_statement.py checks it
    counted |= set(NUMBER.findall(stated))
    balance = json.loads((finished / "metrics.jsonl").read_text())["test_balance"]["classes"]
    counted |= {f"{x['right'] / x['answers']:.3f}" for x in balance if x["answers"]}  # precision
    std = np.sqrt(json.loads((finished / "redistribution.json").read_text())["r"])
    counted |= {f"{end:.2g}" for end in np.percentile(std / np.median(std), (2, 98))}  # the scale of the map
    unknown = [number for number in found if number not in counted and not is_there(number, (str(finished),))]
    assert unknown == []


def test_shares_of_the_page_are_counted_in_the_rows(finished, tmp_path):
    """Certified and attacked accuracies again, from the rows of every example."""
    page, _ = made([finished], tmp_path)
    certificates, attacks = (read_rows(finished / name) for name in ("certificates.csv", "attacks.csv"))
    for norm, radii in (("linf", (0.01, 0.02, 0.05, 0.1)), ("l2", (0.25, 0.5, 0.75, 1.0))):
        part = page.split(f"<h3>{norm}: ")[1].split("</table>")[0]
        rows = [row for row in certificates if row["norm"] == norm]
        right = [row for row in rows if not row["abstained"] and row["prediction"] == row["label"]]
        for rule in ("tight", "analytic", "extended", "classic", "as-published"):
            (line,) = re.findall(rf"<tr><td>{rule}\b(?!-).*?</tr>", part, re.DOTALL)
            shares = [sum(row[f"radius_{rule}"] >= radius for row in right) / len(rows) for radius in radii]
            assert re.findall(r"<td>([\d.]+)<small>", line) == [f"{share:.3f}" for share in shares]
            assert line.endswith(f"<td>{sum(row[f'radius_{rule}'] for row in right) / len(rows):.4f}</td></tr>")
    (line,) = re.findall(r"<tr><td>fgsm</td>.*?</tr>", page, re.DOTALL)
    clean = [row["clean_label_votes"] > row["clean_other_votes"] for row in attacks]  # a tie is not right
    after = [row["label_votes"] > row["other_votes"] for row in attacks]
    counted = [
        clean,
        after,
        [right and row["clean_radius"] >= 0.05 for right, row in zip(clean, attacks, strict=True)],
        [right and row["radius"] >= 0.05 for right, row in zip(after, attacks, strict=True)],
    ]
    assert re.findall(r"<td>([\d.]+)<small>", line) == [f"{sum(hits) / len(attacks):.3f}" for hits in counted]


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


RECHECKED, DOUBTED = "Rechecked: replaying the ledger", "Do not believe this figure."


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


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A network and data that only the caller has, and no test set at training."""
    folder, data = tmp_path_factory.mktemp("own") / "mine", load_data("digits")
    model = ss.NoisyNetwork(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8), radius_per_std=0.05)
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 64, "steps": 3, "accountant": "rdp"}
    run = ss.train(model, (data.train_inputs, data.train_targets), out=folder, **settings)
    test_set = (data.test_inputs, data.test_targets)
    run.certify(test_set, examples=6, draws=60, selection_draws=10)
    run.attack(test_set, "fgsm", budget=0.05, examples=4, eot=2, draws=20, certify_draws=20, sanity_checks=False)
    return folder


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
