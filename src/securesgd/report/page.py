"""The report: one self-contained HTML file about one run, or several side by side. Reads run folders; no torch."""

__all__ = ["WrittenReport", "build_part", "not_guaranteed", "render_again", "report"]

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from securesgd import __version__
from securesgd.check.outcome import FAIL, Finding
from securesgd.check.records import check_records, unbelieved_tiles
from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.models.redistribution import Redistribution
from securesgd.report.accuracy import accuracy_part, no_accuracy
from securesgd.report.charts import attack_charts, certified_charts, noise_picture, png_uri
from securesgd.report.commands import check_commands
from securesgd.report.comparison import comparison_part
from securesgd.report.privacy import NO_PRIVACY, privacy_part
from securesgd.report.robustness import (
    attack_rows,
    attack_warnings,
    certificate_tables,
    no_certificates_words,
    side_by_side,
)
from securesgd.report.run_record import RunRecord, is_noisy, read_run
from securesgd.runtime import run_folder as names
from securesgd.runtime.run_folder import IN_MEMORY, OWN_NETWORK
from securesgd.runtime.storage import open_regular, read_bytes, write_whole

_BEGINNING = b"<!doctype html>"
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """What a report says about the folders it was made of, besides their numbers."""

    missing: list[str]
    """What is missing in them, in words."""
    failures: list[str]
    """The claims of them that are not believed, and why."""


def report(folders: Sequence[Path], out: Path) -> WrittenReport:
    """Write the report of these runs to `out`; return what is missing in them, and what of them is not believed.

    Guarantee: every claim that can be checked without the network is (`check.records`); a number at the top of a run
    that rests on one that fails is not shown.
    Raises: InvalidInputError if a folder is not a run folder, no folder is given, or `out` is a file of another kind.
    """
    if not folders:
        raise InvalidInputError("give the folder of a run, or of several")
    _require_free(out)
    records = [read_run(folder) for folder in folders]
    if len({record.name for record in records}) < len(records):
        for record in records:
            record.name = str(record.folder)
    findings = [check_records(record.folder) for record in records]
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_whole(out, _render(records, findings, date).encode("utf-8", "backslashreplace"))
    return WrittenReport(
        missing=[f"{record.name}: {line}" for record in records for line in record.missing],
        failures=[
            f"{record.name}: {finding.claim}: {finding.words}"
            for record, found in zip(records, findings, strict=True)
            for finding in found
            if finding.outcome == FAIL
        ],
    )


def render_again(folder: Path, source: dict[str, Any]) -> str:
    """Return the report of one run as `report` would write it now; `source` is what the page says it was made of.

    Only what is no claim is taken from `source`: the date, and what the folder was called then.
    Raises: KeyError, TypeError if it has not got that.
    """
    record, [called] = read_run(folder), source["runs"]
    record.name, record.shown, record.called = (str(called[name]) for name in ("name", "shown", "called"))
    return _render([record], [check_records(folder)], str(source["date"]))


def _render(records: Sequence[RunRecord], findings: Sequence[Sequence[Finding]], date: str) -> str:
    """Return the page."""
    runs = [
        _run_section(record, number, found)
        for number, (record, found) in enumerate(zip(records, findings, strict=True))
    ]
    title = runs[0]["title"] if len(runs) == 1 else f"{len(runs)} runs side by side"
    called = [{"name": record.name, "shown": record.shown, "called": record.called} for record in records]
    return _template().render(
        title=title,
        runs=runs,
        comparison=comparison_part(records, runs),
        version=__version__,
        date=date,
        source={"version": __version__, "date": date, "runs": called},
    )


@cache
def _template() -> jinja2.Template:
    source = (files("securesgd.report") / "page.html.j2").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(source)


def _require_free(out: Path) -> None:
    """Raise InvalidInputError if something other than a report is at `out`."""
    if out.is_dir():
        raise InvalidInputError(
            f"{out} is a folder; give the path of a file for the report, e.g. {out / 'report.html'}"
        )
    if not out.exists():
        return
    with open_regular(out) as file:
        is_report = file.read(len(_BEGINNING)) == _BEGINNING
    if not is_report:
        raise InvalidInputError(f"{out} exists and is not a report; give another --out, or move it away")


def _run_section(record: RunRecord, number: int, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what the template shows of one run. A part whose file has another shape is left out, and named."""
    description = {
        "title": f"run {record.name}", "method": "unknown", "dataset": "unknown", "subtitle": "",
        "redistribution_words": "", "commands": "",
    }  # fmt: skip
    privacy = build_part(record, "model.json or ledger.jsonl", privacy_part, NO_PRIVACY)
    certificates = build_part(record, names.CERTIFICATES, certificate_tables, [])
    attacks = build_part(record, names.ATTACK_RECORD, attack_rows, [])
    if not certificates:
        record.certificates = []
    unbelieved = unbelieved_tiles(findings)
    if "privacy" in unbelieved:
        privacy["doubts"] = [*privacy["doubts"], unbelieved["privacy"]]
    return {
        "name": record.name,
        "anchor": f"run-{number}",
        "unbelieved": unbelieved,
        "failures": [finding for finding in findings if finding.outcome == FAIL],
        **build_part(record, "config.toml or model.json", _description, description),
        **privacy,
        **build_part(
            record,
            f"{names.CERTIFICATES} or {names.ATTACKS}",
            lambda record: accuracy_part(record, certificates, attacks),
            no_accuracy(),
        ),
        "certificates": certificates,
        "families": side_by_side(certificates),
        "curves": certified_charts(record.certificates),
        "no_certificates": _with_command(_shown(record, no_certificates_words(record))),
        "attacks": attacks,
        "warnings": build_part(record, names.ATTACK_RECORD, attack_warnings, []) if attacks else [],
        "gallery": _picture(record, names.ATTACK_PICTURE) if attacks else None,
        "attack_charts": attack_charts(attacks),
        "noise": build_part(record, names.REDISTRIBUTION, _noise, None),
        "not_guaranteed": not_guaranteed(privacy["statement"]),
        "config_text": record.config_text,
        "environment": json.dumps(record.environment, indent=2) if record.environment else None,
        **_state(record),  # all parts are made: each may have named a file
    }


def _state(record: RunRecord) -> dict[str, Any]:
    """Return whether training ended, which files are damaged, and which are not there with the command for each."""
    lines = [_shown(record, line) for line in record.missing]
    gone = [line for line in lines if " is missing: " in line]
    unfinished = any(line.startswith(f"{names.MODEL} is missing: ") for line in gone)
    return {
        "unfinished": unfinished,
        "resume": f"securesgd train --resume --out {record.shown}",
        "finish": f"securesgd train --finish --out {record.shown}",
        "damaged": [_with_command(line) for line in lines if line not in gone],
        "missing": [_with_command(line) for line in gone],
        "audit_command": f"securesgd audit {record.shown}",
        "attack_command": f"securesgd attack {record.shown} --attack all",
    }


def _with_command(line: str) -> dict[str, str]:
    """Return a line as words and the command at its end, if it has one."""
    words, found, command = line.partition("securesgd ")
    known = found and words.endswith(": ")
    return {"words": words.removesuffix(": ") if known else line, "command": found + command if known else ""}


def _noise(record: RunRecord) -> dict[str, Any] | None:
    path = record.folder / names.REDISTRIBUTION
    return noise_picture(Redistribution.load(path)) if record.way is not None and path.exists() else None


def _shown(record: RunRecord, line: str) -> str:
    """Return a line with the folder as the report shows it."""
    return line.replace(str(record.folder), record.shown)


def build_part(record: RunRecord, name: str, build: Callable[[RunRecord], Any], default: Any) -> Any:
    """Return a part of the page, or `default` if its file has another shape than it should: named in `missing`."""
    try:
        return build(record)
    except (
        SecureSGDError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        StopIteration,
    ) as error:
        record.missing.append(f"{name} cannot be used: {type(error).__name__} {error}")
        return default


def _description(record: RunRecord) -> dict[str, Any]:
    """Return what was trained on what, from config.toml, or from model.json if that is missing."""
    config, model = record.config or {}, record.model or {}
    method = config.get("method") or model.get("method")
    dataset = config.get("dataset") or model.get("data", {}).get("name")
    known = [str(method)] if method else []
    if dataset:
        known.append("data in memory" if dataset == IN_MEMORY else str(dataset))
    return {
        "title": " on ".join(known) if method else f"run {record.name}",
        "method": method or "unknown",
        "dataset": dataset or "unknown",
        "subtitle": _subtitle(record),
        "redistribution_words": _redistribution_words(record, config.get("robustness", {})) if is_noisy(record) else "",
        "commands": check_commands(record),
    }


def _subtitle(record: RunRecord) -> str:
    """Return network, size of the training set (if it is public) and steps in one sentence."""
    training = (record.config or {}).get("training", {})
    sizes = (record.model or {}).get("data", {}).get("sizes", {})
    network = record.network
    parts = ["A network of the user's own" if network == OWN_NETWORK else f"Network {network or 'unknown'}"]
    if "train" in sizes:
        parts.append(f"trained on {sizes['train']:,} examples")
    if training:
        parts.append(f"{training.get('steps', 0):,} steps of expected batch {training.get('batch_size', 0):,}")
    return ", ".join(parts) + "."


_NO_COST = "It does not look at the private data."
_COSTS = {
    "uniform": _NO_COST, "random": _NO_COST, "prior": _NO_COST, "public": _NO_COST,
    "private": "Its release from the private data is in the ledger.",
    "learned": "It was trained like any other parameter, inside the steps of DP-SGD, at no extra cost.",
    "as-published": "It was computed on the private data without protection: the privacy statement is void.",
}  # fmt: skip
"""By way to obtain r: what it cost."""


def _redistribution_words(record: RunRecord, robustness: dict[str, Any]) -> str:
    """Return where the noise is, how r was obtained, and what that cost."""
    place = str(robustness.get("place", "first-layer")).replace("-", " ")
    if record.way is None:
        return f"Noise at the {place}. How it is shared out, and whether that cost privacy, is not known."
    cost = _COSTS.get(record.way, "It comes from outside this package: whether it reads the private data is not known.")
    return f"Noise at the {place}, shared out by {record.way} r. {cost}"


def not_guaranteed(statement: dict[str, Any] | None) -> list[str]:
    """Return what a run does not promise, in sentences; `statement` is its privacy statement as JSON."""
    lines = [
        "Privacy is for one training example. Groups of people, or one person with several examples, are protected "
        "less.",
        "Settings may have been chosen by people who looked at this or similar data: only a search that the ledger "
        "names is in the budget.",
        "The test set is not protected: accuracies, certificates and attacked images are about it.",
        "Certificates are about changes of the input measured in the stated norm. Rotations, other cameras or other "
        "kinds of pictures are not covered.",
        "A certificate does not say that a prediction is right, only that it stays the same.",
        "The time and memory that training takes are not covered."
        if statement is not None and statement["noise"] is not None
        else "Floating-point arithmetic is not covered: noise is drawn and added in finite precision.",
    ]
    if statement is not None and not statement["guaranteed"]:
        lines.insert(0, f"Privacy itself: {'; '.join(statement['reasons'])}.")
    return lines


def _picture(record: RunRecord, name: str) -> str | None:
    """Return a picture of the folder for the page; None if it is not there, or is no picture: named in `missing`."""
    path = record.folder / name
    if not path.exists():
        return None
    try:
        content = read_bytes(path)
    except DamagedFileError as error:
        record.missing.append(f"{name} cannot be used: {error}")
        return None
    if not content.startswith(_PNG):
        record.missing.append(f"{name} cannot be used: it is not a PNG picture")
        return None
    return png_uri(content)
