"""Several runs in one table: the settings they differ in, and what came of them; and their curves in joint charts."""

__all__ = ["comparison_part"]

from collections.abc import Mapping, Sequence
from typing import Any

from securesgd.report.charts import compared_charts
from securesgd.report.run_record import RunRecord

_UNBELIEVED = "not believed"
_RESULTS = (
    ("ε of the training data", "privacy", lambda run: (run["epsilon_shown"], "")),
    ("δ", "privacy", lambda run: (run["delta"], "")),
    ("accuracy, whole test set", "accuracy", lambda run: (run["accuracy"], "")),
    ("images of the next four", "", lambda run: (run["tiles"]["images"], "")),
    ("right", "accuracy", lambda run: (run["tiles"]["right"] if run["tiles"]["images"] else None, "")),
    ("always one answer", "", lambda run: (run["tiles"]["one_answer"], "")),
    ("right and proven, rule tight", "certified", lambda run: _tile(run, "certified")),
    ("right under the worst attack", "attacked", lambda run: _tile(run, "attacked")),
)
"""What is compared: its title, the claim behind it (a key of `unbelieved`), and text and remark of a run."""


def comparison_part(records: Sequence[RunRecord], runs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the table and the charts of several runs; None if it is only one. `runs` are their sections."""
    if len(runs) < 2:
        return None
    differing, partial, same = _settings(records)
    results = []
    for title, claim, value in _RESULTS:
        cells = [(_UNBELIEVED, "") if claim in run["unbelieved"] else value(run) for run in runs]
        results.append({"title": title, "cells": [{"text": text or "–", "remark": remark} for text, remark in cells]})
    pairs = list(zip(records, runs, strict=True))
    return {
        "differing": differing,
        "partial": partial,
        "same": same,
        "results": results,
        "charts": compared_charts(
            {x.name: x.certificates for x, run in pairs if x.certificates and "certified" not in run["unbelieved"]},
            {x.name: run["attacks"] for x, run in pairs if run["attacks"] and "attacked" not in run["unbelieved"]},
            {x.name: x.ledger for x, run in pairs if x.ledger is not None and "privacy" not in run["unbelieved"]},
        ),
    }


def _tile(run: dict[str, Any], name: str) -> tuple[str | None, str]:
    number = run["tiles"][name]
    return number, run["tiles"][f"{name}_where"] if number else ""


def _settings(records: Sequence[RunRecord]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, str]]]:
    """Return the settings in which runs differ, those that only some have, and those that all share.

    A run whose settings cannot be read has "unknown" for all of them; "–" is for a setting that a run does not have.
    """
    flat = [None if record.config is None else _flat(record.config) for record in records]
    known = [settings for settings in flat if settings is not None]
    differing, partial, same = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, str]]()
    for name in dict.fromkeys(name for settings in known for name in settings):
        values = ["unknown" if settings is None else settings.get(name, "–") for settings in flat]
        if len(set(values)) == 1:
            same.append({"title": name, "value": values[0]})
            continue
        cells = [{"text": value, "differs": value != values[0]} for value in values]
        rows = differing if all(name in settings for settings in known) else partial
        rows.append({"title": name, "cells": cells})
    return differing, partial, same


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings by dotted names, as texts."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
