"""Every number of the report is in the records of the run: tiles, classes, shares."""

import json
import re
import shutil

import numpy as np
import pytest

from securesgd.privacy import run_statement, statement_rows
from securesgd.runtime.tables import read_rows
from tests.recorded_numbers import NUMBER, is_there
from tests.report.made_page import made


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
