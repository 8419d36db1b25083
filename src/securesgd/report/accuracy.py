"""The accuracies of a report: the numbers at its top, all about the same images, and what they are worth by class."""

__all__ = ["MOST_CLASSES", "accuracy_part", "middle_radius", "no_accuracy"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from securesgd.attacks.robust_accuracy import attack_balance
from securesgd.certificates.rules import record_key
from securesgd.certificates.summary import certificate_balance, certified_accuracy, is_right
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.report.run_record import RunRecord, class_names
from securesgd.runtime import run_folder as names
from securesgd.runtime.run_records import RunMetrics
from securesgd.theory.class_balance import ClassBalance, class_balance, class_name

MOST_CLASSES = 100
"""Rows of the table of classes; of more, those with the lowest recall."""

Rows = dict[int, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A column of the table of classes: what it is called, and the answers it counts."""

    examples: str
    """Which examples it is about."""
    title: str
    balance: ClassBalance
    clean: bool = True
    """Whether a low share would be the model's fault, not that of an attack or of a proof."""
    precision: bool = False
    """Whether it is about the answers of a class instead of its examples."""

    def cell(self, number: int) -> dict[str, Any] | None:
        """Return the share of a class and what it is a share of; None if that is nothing."""
        counts = self.balance.answers if self.precision else self.balance.examples
        if number >= len(counts) or not counts[number]:
            return None
        of = f"{counts[number]:,} answers" if self.precision else f"{counts[number]:,}"
        return {"share": self.balance.right[number] / counts[number], "of": of}


def accuracy_part(record: RunRecord, tables: list[dict[str, Any]], attacks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return tiles, the table of classes and warnings about them, from metrics.jsonl and the rows of every example.

    `tables` and `attacks` are those of the page. The tiles are about the images that the first table and the worst
    attack share, or about the larger set if only one is there or they share none.
    """
    worst = min(attacks, key=lambda row: float(row["attacked"]["share"])) if attacks else None
    certified = _certificate_rows(record, tables[0]["key"]) if tables else {}
    attacked = _attack_rows(record, worst["cell"]) if worst else {}
    test = _test_metrics(record)
    measured = [] if test is None or test.test_balance is None else _test_columns(test.test_balance)
    for table in tables:
        measured += _certified_columns(list(_certificate_rows(record, table["key"]).values()), table)
    if worst and attacked:
        measured += _attacked_columns(list(attacked.values()), _attack_name(worst))
    known = class_names(record)
    return {
        "accuracy": _test_accuracy(test),
        "tiles": _tiles(record, tables, worst, certified, attacked, test),
        "by_class": _class_table(measured, known),
        "balance_warnings": _warnings(measured, known),
    }


def _test_columns(balance: ClassBalance) -> list[_Measured]:
    return [
        _Measured(examples="whole test set", title="recall", balance=balance),
        _Measured(examples="whole test set", title="precision", balance=balance, clean=False, precision=True),
    ]


def _certified_columns(rows: list[dict[str, Any]], table: dict[str, Any]) -> list[_Measured]:
    """Return what is right, and what is right and proven at the radius that the tile is about."""
    examples, radius = f"certified, {table['norm']}{table['by_short']}", middle_radius(table)
    proven = class_balance(
        [row["label"] for row in rows],
        [row["prediction"] if is_right(row) and row["radius_tight"] >= float(radius) else None for row in rows],
    )
    return [
        _Measured(examples=examples, title="right", balance=certificate_balance(rows)),
        _Measured(examples=examples, title=f"right and proven at {radius}", balance=proven, clean=False),
    ]


def _attacked_columns(rows: list[dict[str, Any]], attack: str) -> list[_Measured]:
    return [
        _Measured(examples="attacked images", title="before", balance=attack_balance(rows, "clean")),
        _Measured(
            examples="attacked images", title=f"under {attack}", balance=attack_balance(rows, "attacked"), clean=False
        ),
    ]


def middle_radius(table: dict[str, Any]) -> str:
    """Return the radius of a table of certificates that short statements are about."""
    return str(table["radii"][len(table["radii"]) // 2])


def no_accuracy() -> dict[str, Any]:
    """Return the same part for a run of whose accuracy nothing can be said."""
    tiles: dict[str, Any] = {
        "images": None, "right": None, "one_answer": None, "certified": None, "attacked": None,
        "right_label": "accuracy", "certified_label": "certified accuracy", "attacked_label": "accuracy under attack",
        "certified_where": "", "attacked_where": "",
    }  # fmt: skip
    return {"accuracy": None, "tiles": tiles, "by_class": None, "balance_warnings": []}


def _test_metrics(record: RunRecord) -> RunMetrics | None:
    """Return what was measured when training ended; None, with the file named in `missing`, if it cannot be used."""
    if record.metrics is None:
        return None
    try:
        return RunMetrics.from_json(record.metrics)
    except InvalidInputError as error:
        record.missing.append(f"{names.METRICS} cannot be used: {error}")
        return None


def _test_accuracy(test: RunMetrics | None) -> str | None:
    if test is None:
        return None
    return "not measured" if test.test_accuracy is None else f"{test.test_accuracy:.4f}"


def _certificate_rows(record: RunRecord, key: str) -> Rows:
    """Return the certificates of a table by example."""
    return _by_example([row for row in record.certificates if record_key(row) == key], names.CERTIFICATES)


def _attack_rows(record: RunRecord, cell: str) -> Rows:
    """Return the rows behind the summary of an attack by example: of the first ones, if it was of fewer than all."""
    examples = int(record.attacks["cells"][cell]["summary"]["examples"])
    rows = [row for row in record.attacked if row["cell"] == cell and row["index"] < examples]
    return _by_example(rows, names.ATTACKS)


def _by_example(rows: Sequence[dict[str, Any]], file: str) -> Rows:
    found = {int(row["index"]): row for row in rows}
    if len(found) < len(rows):
        raise DamagedFileError(f"{file} has an example twice")
    return found


def _tiles(
    record: RunRecord,
    tables: list[dict[str, Any]],
    worst: dict[str, Any] | None,
    certified: Rows,
    attacked: Rows,
    test: RunMetrics | None,
) -> dict[str, Any]:
    """Return the numbers at the top of the page, about one set of images."""
    proven, broken = _same_images(certified, attacked, one_test_set=_one_test_set(record, tables, worst))
    tiles, count = no_accuracy()["tiles"], len(proven or broken)
    if tables:
        radius = middle_radius(tables[0])
        where = f"at {tables[0]['norm']} {radius}{tables[0]['by']}"
        share = certified_accuracy(proven, "tight", float(radius))["share"] if proven else None
        tiles |= {"certified": _number(share), "certified_where": where}
        tiles["certified_label"] = f"right and proven {where}, {_of(count, share)}"
    if worst:
        where, share = _attack_name(worst), attack_balance(broken, "attacked").accuracy if broken else None
        tiles |= {"attacked": _number(share), "attacked_where": where}
        tiles["attacked_label"] = f"right under the worst attack ({where}), {_of(count, share)}"
    if not count:
        on = f" on {test.test_images:,} test images" if test is not None and test.test_images else ""
        return tiles | {"right": _test_accuracy(test), "right_label": f"accuracy{on}"}
    right = attack_balance(broken, "clean") if broken else certificate_balance(proven)
    common = class_name(right.majority_class, class_names(record))
    return tiles | {
        "images": f"{count:,}",
        "right": _number(right.accuracy),
        "right_label": f"right, {_of(count, right.accuracy)}; always answering “{common}”: {right.majority_rate:.3f}",
        "one_answer": _number(right.majority_rate),
    }


def _same_images(
    certified: Rows, attacked: Rows, *, one_test_set: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the images that both have; if there are none, the rows of the larger set, and none."""
    shared = sorted(certified.keys() & attacked.keys()) if one_test_set else []
    if shared:
        return [certified[index] for index in shared], [attacked[index] for index in shared]
    return (list(certified.values()), []) if len(certified) >= len(attacked) else ([], list(attacked.values()))


def _one_test_set(record: RunRecord, tables: list[dict[str, Any]], worst: dict[str, Any] | None) -> bool:
    """Return whether the certificates and the attack are about the same test set, as far as their records say."""
    if not tables or worst is None:
        return False
    cells, stated = record.attacks["cells"], record.certificate_records[tables[0]["key"]]
    digests = {stated.get("data"), cells[worst["cell"]].get("data")} - {None}
    return len(digests) < 2


def _attack_name(row: dict[str, Any]) -> str:
    return f"{row['attack']}, {row['norm']} {row['budget']}"


def _number(share: float | None) -> str | None:
    return None if share is None else f"{share:.3f}"


def _of(count: int, share: float | None) -> str:
    return "of other images: see below" if share is None else f"of {count:,} test images"


def _class_table(measured: Sequence[_Measured], known: Sequence[str] | None) -> dict[str, Any] | None:
    """Return a column per share: of all examples, of always giving one answer, and of each class."""
    if not measured:
        return None
    classes = max(len(known or ()), *(len(x.balance.examples) for x in measured))
    numbers = sorted(range(classes), key=lambda k: min(_recall(x, k) for x in measured))[:MOST_CLASSES]
    groups = dict.fromkeys(x.examples for x in measured)
    return {
        "groups": [{"title": name, "columns": sum(x.examples == name for x in measured)} for name in groups],
        "titles": [x.title for x in measured],
        "all": [None if x.precision else x.balance.json()["accuracy"] | {"of": f"{x.balance.n:,}"} for x in measured],
        "one_answer": [
            None
            if x.precision
            else {"share": x.balance.majority_rate, "of": f"“{class_name(x.balance.majority_class, known)}”"}
            for x in measured
        ],
        "classes": [{"name": class_name(k, known), "cells": [x.cell(k) for x in measured]} for k in sorted(numbers)],
        "left_out": classes - len(numbers),
    }


def _recall(measured: _Measured, number: int) -> float:
    """Return the recall of a class; a class without examples comes after all others."""
    recall = measured.balance.recall
    share = recall[number] if number < len(recall) else None
    return 2.0 if share is None else share


def _warnings(measured: Sequence[_Measured], known: Sequence[str] | None) -> list[str]:
    """Return why accuracies of the page say little. Not under attack, where it is the attack that makes them low."""
    titles: dict[str, list[str]] = {}
    for x in measured:
        warning = x.balance.warning(known) if x.clean else None
        if warning:
            titles.setdefault(warning, []).append(x.examples)
    return [f"{'; '.join(titles[warning])}: {warning}." for warning in titles]
