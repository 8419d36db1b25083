"""The report: one self-contained HTML file about one run, or several side by side. Reads run folders; no torch."""

__all__ = ["report"]

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from securesgd import __version__
from securesgd.certificates.summary import certified_summary, guarantee_in_words
from securesgd.errors import DamagedFileError, InvalidInputError, SecureSGDError
from securesgd.privacy.events import GaussianRelease, PrivacyEvent, SampledGaussianSteps, UnprotectedRelease
from securesgd.privacy.ledger_record import Record
from securesgd.report.plots import budget_spent_figure, compared_curves_figure
from securesgd.report.run_record import RunRecord, is_noisy, read_run
from securesgd.runtime.storage import open_regular, read_bytes, read_json, write_whole
from securesgd.theory.certificates import rule_caveat
from securesgd.theory.rounding import round_up

_BEGINNING = b"<!doctype html>"
_PNG = b"\x89PNG\r\n\x1a\n"


def report(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the report of these runs to `out`; return what is missing in them, in words.

    Raises: InvalidInputError if a folder is no run folder, or there is none.
    """
    if not folders:
        raise InvalidInputError("give the folder of a run, or of several")
    _require_free(out)
    records = [read_run(folder) for folder in folders]
    if len({record.name for record in records}) < len(records):
        for record in records:
            record.name = str(record.folder)
    runs = [_shown(record, number) for number, record in enumerate(records)]
    title = runs[0]["title"] if len(runs) == 1 else f"{len(runs)} runs side by side"
    source = (files("securesgd.report") / "page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    compared = _compared(records)
    text = environment.from_string(source).render(
        title=title, runs=runs, compared=compared, version=__version__, made=made
    )
    write_whole(out, text.encode("utf-8", "backslashreplace"))
    return [f"{record.name}: {line}" for record in records for line in record.missing]


def _require_free(out: Path) -> None:
    """Pass if a report may be written to `out`: nothing is there, or a report."""
    if out.is_dir():
        raise InvalidInputError(
            f"{out} is a folder; give the path of a file for the report, e.g. {out / 'report.html'}"
        )
    if not out.exists():
        return
    with open_regular(out) as file:
        is_report = file.read(len(_BEGINNING)) == _BEGINNING
    if not is_report:
        raise InvalidInputError(f"{out} is there and is not a report; give another --out, or move it away")


def _compared(records: Sequence[RunRecord]) -> str | None:
    """Return a picture of what is certified of each run, if there are several to compare."""
    certified = {record.name: record.certificates for record in records if record.certificates}
    if len(certified) < 2:
        return None
    return _data_uri(compared_curves_figure(certified))


def _shown(record: RunRecord, number: int) -> dict[str, Any]:
    """Return what the template shows of one run. A part that is not what it should be is left out, and said so."""
    config = record.config or {}
    about = {"method": "unknown", "dataset": "unknown", "subtitle": "", "redistribution_words": "", "commands": ""}
    without: dict[str, Any] = {
        "statement": None, "doubts": [], "words": "", "epsilon": "–", "epsilon_shown": "unknown", "delta": "–",
        "releases": [], "spent": None, "replayed": None,
    }  # fmt: skip
    privacy = _part(record, "model.json or ledger.jsonl", _privacy, without)
    certified = _part(record, "certificates.csv", _certified, [])
    attacked = _part(record, "attacks.json", _attacked, [])
    if not certified:
        record.certificates = []
    return {
        "name": record.name,
        "anchor": f"run-{number}",
        "title": f"{config.get('method', 'unknown method')} on {config.get('dataset', 'unknown data')}",
        "missing": record.missing,
        **_part(record, "config.toml or model.json", _about, about),
        **privacy,
        **_part(record, "metrics.jsonl", _accuracy, {"accuracy": None, "test_images": None}),
        "certified": certified,
        **_headlines(certified, attacked),
        "curves": _inline(record, "certificates.png") if certified else None,
        "without_certificates": _without_certificates(record),
        "attacked": attacked,
        "suspicions": _part(record, "attacks.json", _suspicions, []) if attacked else [],
        "gallery": _inline(record, "attacks.png") if attacked else None,
        "redistribution": _inline(record, "redistribution.png"),
        "not_guaranteed": _not_guaranteed(privacy["statement"]),
        "config_text": record.config_text,
        "environment": json.dumps(record.environment, indent=2) if record.environment else None,
    }


def _part(record: RunRecord, name: str, build: Callable[[RunRecord], Any], otherwise: Any) -> Any:
    """Return a part of the page, or `otherwise` if its file has another shape than it should: named in `missing`."""
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
        return otherwise


def _about(record: RunRecord) -> dict[str, Any]:
    config = record.config or {}
    return {
        "method": config.get("method", "unknown"),
        "dataset": config.get("dataset", "unknown"),
        "subtitle": _subtitle(config, record.model or {}),
        "redistribution_words": _redistribution_words(record, config.get("robustness", {})),
        "commands": _commands(record),
    }


def _subtitle(config: dict[str, Any], model: dict[str, Any]) -> str:
    training = config.get("training", {})
    sizes = model.get("data", {}).get("sizes", {})
    parts = [f"Network {config.get('network', 'unknown')}"]
    if "train" in sizes:  # it is not told where it is not public
        parts.append(f"trained on {sizes['train']:,} examples")
    if training:
        parts.append(f"{training.get('steps', 0):,} steps of expected batch {training.get('batch_size', 0):,}")
    return ", ".join(parts) + "."


def _privacy(record: RunRecord) -> dict[str, Any]:
    """Return what is said about privacy. What is shown is what the ledger gives now, not what the run once wrote."""
    statement = None if record.statement is None or record.replayed is None else record.replayed
    header = None if record.ledger is None else record.ledger.header
    epsilon, delta = "–", "–" if header is None else str(header.delta)
    if statement is not None:
        epsilon = "∞" if math.isinf(statement.epsilon) else _epsilon_text(statement.epsilon)
        delta = f"{statement.delta:g}"
    picture = None if record.ledger is None else budget_spent_figure(record.ledger)
    return {
        "statement": None if statement is None else statement.json(),
        "doubts": record.doubts,
        "words": (record.statement or {}).get("in_words", ""),
        "replayed": record.replayed,
        "epsilon": epsilon,
        "epsilon_shown": {"∞": "not private", "–": "unknown"}.get(epsilon, epsilon),
        "delta": delta,
        "releases": [] if record.ledger is None else _releases(record.ledger.records),
        "adjacency": "unknown" if header is None else header.adjacency,
        "accountant": "UNKNOWN, " if header is None else f"{header.accountant.upper()}, {header.accountant_version}",
        "examples": "not public" if header is None or header.dataset_size is None else f"{header.dataset_size:,}",
        "spent": None if picture is None else _data_uri(picture),
    }


def _epsilon_text(epsilon: float) -> str:
    """Return epsilon to four decimals, never below it, without zeros at the end."""
    return f"{round_up(epsilon, decimals=4):.4f}".rstrip("0").rstrip(".")


def _releases(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return the ledger's events as rows, consecutive blocks of equal DP-SGD steps as one."""
    rows: list[dict[str, Any]] = []
    last: PrivacyEvent | None = None
    for record in records:
        event, spent = record.event, "∞" if math.isinf(record.epsilon) else f"{record.epsilon:.4f}"
        row: dict[str, Any] = {"noise": "none", "rate": "–", "times": 1, "epsilon": spent}
        match event:
            case SampledGaussianSteps():
                if isinstance(last, SampledGaussianSteps) and replace(last, steps=event.steps) == event:
                    rows[-1] |= {"times": rows[-1]["times"] + event.steps, "epsilon": spent}
                    continue
                row |= {"what": "steps of DP-SGD on Poisson samples", "noise": f"{event.noise_multiplier:.4f}"}
                row |= {"rate": f"{event.sampling_rate:.5f}", "times": event.steps}
            case GaussianRelease():
                row |= {"what": event.label, "noise": f"{event.noise_multiplier:.4f}"}
            case UnprotectedRelease():
                row |= {"what": f"{event.label}: {event.reason}"}
        rows.append(row)
        last = event
    return [row | {"times": f"{row['times']:,}"} for row in rows]


def _accuracy(record: RunRecord) -> dict[str, Any]:
    if record.metrics is None:
        return {"accuracy": None, "test_images": None}
    return {
        "accuracy": f"{record.metrics['test_accuracy']:.4f}",
        "test_images": f"{record.metrics['test_images']:,}",
    }


def _certified(record: RunRecord) -> list[dict[str, Any]]:
    shown = []
    for norm in ("linf", "l2", "l1"):
        rows = [row for row in record.certificates if row["norm"] == norm]
        if not rows or norm not in record.certificate_records:
            continue
        summary, stated = certified_summary(rows), record.certificate_records[norm]
        by_rule = summary["certified_accuracy"]
        shown.append(
            {
                "norm": norm,
                "examples": f"{len(rows):,}",
                "words": guarantee_in_words(stated["settings"], stated["sensitivity"], summary),
                "checks": _checks(record, norm),
                "radii": list(by_rule["tight"]),
                "rows": [
                    {
                        "rule": rule,
                        "caveat": rule_caveat(rule),
                        "shares": list(at_radii.values()),
                        "mean": summary["average_certified_radius"][rule],
                    }
                    for rule, at_radii in by_rule.items()
                ],
            }
        )
    return shown


def _checks(record: RunRecord, norm: str) -> list[str]:
    """Return in words what attacks on the certificates themselves have found (`certify --check`)."""
    path = record.folder / f"check-{norm}.json"
    if not path.exists():
        return []
    rules = read_json(path)["rules"]
    return [f"Rule {rule}: {found['in_words']}" for rule, found in rules.items()]


def _headlines(certified: list[dict[str, Any]], attacked: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers that stand at the top: the middle radius of the first norm, and the worst attack."""
    shown: dict[str, Any] = {
        "headline_certified": None, "headline_certified_number": None, "headline_certified_label": "certified accuracy",
        "headline_attacked": None, "headline_attacked_number": None, "headline_attacked_label": "accuracy under attack",
    }  # fmt: skip
    if certified:
        part = certified[0]
        middle = len(part["radii"]) // 2
        tight = next(row for row in part["rows"] if row["rule"] == "tight")["shares"][middle]
        number, where = f"{tight['share']:.3f}", f"at {part['norm']} {part['radii'][middle]}"
        shown |= {
            "headline_certified": f"{number} {where}",
            "headline_certified_number": number,
            "headline_certified_label": f"proven right {where}, {part['examples']} examples",
        }
    if attacked:
        worst = min(attacked, key=lambda row: row["attacked"]["share"])
        number = f"{worst['attacked']['share']:.3f}"
        where = f"{worst['attack']}, {worst['norm']} {worst['budget']}"
        shown |= {
            "headline_attacked": f"{number} ({where})",
            "headline_attacked_number": number,
            "headline_attacked_label": f"accuracy under the worst attack ({where})",
        }
    return shown


def _attacked(record: RunRecord) -> list[dict[str, Any]]:
    shown = []
    for cell in record.attacks.get("cells", {}).values():
        attack, summary = cell["attack"], cell.get("summary")
        if summary is None:  # interrupted before its first part was done
            continue
        proven = summary.get("certified_accuracy", {}).get("tight", {})
        shown.append(
            {name: attack[name] for name in ("attack", "protocol", "norm")}
            | {
                "budget": f"{attack['budget']:g}",
                "images": f"{summary['examples']:,}",
                "clean": _share(summary["clean_accuracy"]),
                "attacked": _share(summary["accuracy"]),
                "certified_clean": _share(proven["clean"]) if "clean" in proven else None,
                "certified_attacked": _share(proven["attacked"]) if "attacked" in proven else None,
                "sandwich": {
                    "holds": summary["sandwich"]["holds"] is True,
                    "in_words": str(summary["sandwich"]["in_words"]),
                },
            }
        )
    return sorted(shown, key=lambda row: (row["protocol"], row["norm"], float(row["budget"]), row["attack"]))


def _share(stated: dict[str, Any]) -> dict[str, float]:
    """Return a share and its interval as a file states them. Raises: KeyError, TypeError, ValueError if it has none."""
    return {name: float(stated[name]) for name in ("share", "lower", "upper")}


def _suspicions(record: RunRecord) -> list[str]:
    broken = [row["sandwich"]["in_words"] for row in _attacked(record) if not row["sandwich"]["holds"]]
    return [*broken, *(found["words"] for found in record.attacks.get("suspicions", []))]


def _without_certificates(record: RunRecord) -> str:
    if record.statement is None:
        return "No prediction is certified: training is not finished, or there is no record of it."
    if is_noisy(record):
        return f"No prediction is certified yet. Run: securesgd certify {record.folder}"
    return "This network has no noise in its first layer: nothing can be proven about its predictions."


def _redistribution_words(record: RunRecord, robustness: dict[str, Any]) -> str:
    place = str(robustness.get("place", "first-layer")).replace("-", " ")
    if record.way is None:
        return f"Noise at the {place}. How it is shared out, and whether that cost privacy, is not known."
    costs = {
        "private": "Its release from the private data is in the ledger.",
        "learned": "It was trained like any other parameter, inside the steps of DP-SGD, at no extra cost.",
        "as-published": "It was computed on the private data without protection: the privacy statement is void.",
    }
    cost = costs.get(record.way, "It does not look at the private data.")
    return f"Noise at the {place}, shared out by {record.way} r. {cost}"


def _not_guaranteed(statement: dict[str, Any] | None) -> list[str]:
    lines = [
        "Privacy is for one training example added or removed. Groups of people, or one person with several examples, "
        "are protected less.",
        "Settings were chosen by people who may have looked at this or similar data; such a search is in no budget.",
        "The test set is not protected: accuracies, certificates and attacked images are about it.",
        "Certificates are about changes of the input measured in the stated norm. Rotations, other cameras or other "
        "kinds of pictures are not covered.",
        "A certificate does not say that a prediction is right, only that it stays the same.",
        "Floating-point arithmetic is not covered: noise is drawn and added in finite precision.",
    ]
    if statement is not None and not statement["guaranteed"]:
        lines.insert(0, f"Privacy itself: {'; '.join(statement['reasons'])}.")
    return lines


def _commands(record: RunRecord) -> str:
    folder = record.folder.resolve().name
    lines = [
        f"# in the folder that holds {folder}/",
        f"securesgd report {folder}          # replays the ledger and checks its digests",
    ]
    for norm, stated in record.certificate_records.items():
        given = stated["settings"]
        options = [f"--norm {norm}", f"--examples {stated['examples']}", f"--failure-prob {given['failure_prob']:g}"]
        for name in ("draws", "selection_draws", "radius", "tolerance"):
            if given[name] is not None:
                options.append(f"--{name.replace('_', '-')} {given[name]}")
        lines.append(f"cp -r {folder} {folder}-{norm}        # fresh noise and a new proof, in a copy")
        lines.append(f"securesgd certify {folder}-{norm} {' '.join(options)} --seed {given['seed'] + 1} --again")
    lines.append(f"securesgd train --config {folder}/config.toml --out again     # the same settings, new secret noise")
    return "\n".join(lines)


def _inline(record: RunRecord, name: str) -> str | None:
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
    return _data_uri(content)


def _data_uri(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()
