"""The model card: what a model is, what is proven about it and what is not, in Markdown for whoever uses it. No torch.

It is a function of the records of the run folder, without a date, a place on a machine, or a number that is not public.
"""

__all__ = ["model_card", "refresh_model_card", "write_model_card"]

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from securesgd.data.image_reading import ImageReading
from securesgd.data.problems import join_some
from securesgd.data.schema import Schema
from securesgd.data.settings import format_size
from securesgd.errors import DamagedFileError, InvalidInputError, printable
from securesgd.report.accuracy import MOST_CLASSES
from securesgd.report.commands import check_commands
from securesgd.report.page import build_part, not_guaranteed
from securesgd.report.robustness import attack_rows, attack_warnings, certificate_tables
from securesgd.report.run_record import RunRecord, class_names, is_noisy, read_run
from securesgd.runtime import run_folder as names
from securesgd.runtime.run_folder import IN_MEMORY, OWN_NETWORK
from securesgd.runtime.run_records import RunMetrics
from securesgd.runtime.storage import open_regular, write_whole
from securesgd.theory.class_balance import ClassBalance, class_name

_BEGINNING = "<!-- securesgd: made from the records of the run by train and report; edit a copy -->"
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#&])")


def write_model_card(folder: Path) -> str | None:
    """Write the card of a finished run into its folder; return in words why it was not, None if it was.

    A file of somebody else in its place stays.
    Raises: InvalidInputError if it is not a run folder.
    """
    path = folder / names.MODEL_CARD
    if not _is_free(path):
        return f"{path.name} is not a card that this package wrote, and was left as it is; move it away for a new one"
    record = read_run(folder.resolve())
    if record.model is None:
        return f"{path.name} was not written: the run is not finished, or its records cannot be read"
    try:
        write_whole(path, model_card(record).encode("utf-8", "backslashreplace"))
    except OSError as error:
        return f"{path.name} could not be written: {error.strerror}"
    return None


def refresh_model_card(folders: Sequence[Path], report: Path) -> list[str]:
    """Write the card of the run in whose folder a report was written anew; return in words what was not written."""
    reasons = [write_model_card(folder) for folder in folders if folder.resolve() == report.resolve().parent]
    return [reason for reason in reasons if reason is not None]


def _is_free(path: Path) -> bool:
    """Return whether there is nothing at a path, or an earlier card."""
    if not path.exists() and not path.is_symlink():
        return True
    try:
        with open_regular(path) as file:
            return file.read(len(_BEGINNING.encode())) == _BEGINNING.encode()
    except (DamagedFileError, OSError):
        return False


def model_card(record: RunRecord) -> str:
    """Return the card of a run.

    Guarantee: the same records give the same text. It has nothing that config.toml, model.json, the ledger, the test
    metrics, the certificates and the attacks do not have; of paths in them only the last part.
    Assumes: the record was read from an absolute path, which becomes RUN wherever it is named.
    """
    record = _without_places(record)
    sections: tuple[tuple[str, str, Callable[[RunRecord], list[str]]], ...] = (
        ("Model", names.MODEL, _model),
        ("Data", names.MODEL, _data),
        ("Privacy of the training data", names.LEDGER, _privacy),
        ("Accuracy", names.METRICS, _accuracy),
        ("Robustness", names.CERTIFICATES, _robustness),
        ("Attacks", names.ATTACK_RECORD, _attacks),
        ("What this does not promise", names.LEDGER, _limits),
        ("How to check it", names.CONFIG, _checks),
    )
    lines = [_BEGINNING, "", *build_part(record, names.MODEL, _title, ["# A model"])]
    for title, file, build in sections:
        lines += ["", f"## {title}", "", *build_part(record, file, build, [f"Not known: {file} is damaged."])]
    return "\n".join(lines) + "\n"


def _without_places(record: RunRecord) -> RunRecord:
    """Return the record with paths of data and of the user's code cut down to their last part."""
    config, model = dict(record.config or {}), dict(record.model or {})
    for table in (config, model):
        for name in ("dataset", "network"):
            if isinstance(table.get(name), str):
                table[name] = Path(table[name]).name
    missing = [line.replace(str(record.folder), "RUN") for line in record.missing]
    return replace(record, config=config, model=model, missing=missing)


def _damage(record: RunRecord, *files: str) -> list[str]:
    """Return what is wrong with some files, loudly; that one is not there yet is nothing wrong."""
    lines = [line for line in record.missing if line.startswith(files) and " is missing: " not in line]
    return [text for line in lines for text in ("", f"**{_text(line)}**")]


def _text(value: Any) -> str:
    """Return a text that users chose as Markdown shows it, in one line."""
    return _SPECIAL.sub(r"\\\1", printable(str(value)))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _share(share: dict[str, float]) -> str:
    return f"{share['share']:.3f} ({share['lower']:.2f}–{share['upper']:.2f})"


def _dataset(record: RunRecord) -> str:
    name = (record.model or {}).get("data", {}).get("name") or (record.config or {}).get("dataset", "unknown data")
    return "data in memory" if name == IN_MEMORY else Path(str(name)).name


def _title(record: RunRecord) -> list[str]:
    return [f"# {_text((record.model or {}).get('method', 'A model'))} on {_text(_dataset(record))}"]


def _model(record: RunRecord) -> list[str]:
    model = record.model or {}
    network = "a module of the user's own" if record.network == OWN_NETWORK else _text(record.network or "unknown")
    header = None if record.ledger is None else record.ledger.header
    weights = model.get("weights") or (header.noise.coordinates if header is not None and header.noise else None)
    known, ends = class_names(record) or [], model.get("input_range", "")
    rows = [
        ("method", _text(model.get("method", "unknown"))),
        ("network", f"{network}, {weights:,} trained weights" if weights else network),
        ("input", f"{' × '.join(str(int(size)) for size in model['input_shape'])} numbers"),
        ("classes", f"{len(known):,}: {_text(join_some(known))}"),
        ("steps of training", f"{int(model.get('steps', 0)):,}"),
        *_first_weights(record),
        ("sha256 of the structure", str(record.structure_sha256 or "not recorded")),
    ]
    if ends:
        rows.insert(3, ("range of the input", f"{float(ends[0]):g} to {float(ends[1]):g}"))
    return _table(("what", "value"), rows)


def _first_weights(record: RunRecord) -> list[tuple[str, str]]:
    """Return where the weights before the first private step came from, if not from random numbers."""
    config = record.config or {}
    if not config.get("public_steps"):
        return []
    name = _text(Path(str(config.get("public_dataset"))).name)
    return [("first weights", f"{int(config['public_steps']):,} steps on {name}, declared public by who trained it")]


def _data(record: RunRecord) -> list[str]:
    source = (record.model or {}).get("data", {})
    sizes, header = source.get("sizes", {}), None if record.ledger is None else record.ledger.header
    public = header is not None and header.adjacency == "zero-out"  # else the size in the ledger is a stated population
    train = sizes.get("train") or (header.dataset_size if header is not None and public else None)
    rows = [("name", _text(_dataset(record)))]
    rows += [("split", _text(source["split"]))] if "split" in source else []
    rows.append(("training examples", "not public" if train is None else f"{int(train):,}"))
    rows += [(f"{part} examples", f"{int(sizes[part]):,}") for part in ("holdout", "test") if sizes.get(part)]
    preprocessing = (record.model or {}).get("preprocessing")
    if preprocessing:
        rows.append(("read as", _text(_reading(preprocessing))))
    return _table(("what", "value"), rows)


def _reading(preprocessing: dict[str, Any]) -> str:
    """Return how inputs are made of files."""
    if preprocessing.get("kind") == "table":
        columns = Schema.from_json(preprocessing.get("schema")).used_columns
        return f"rows of a table, scaled by the public bounds of the columns {join_some([c.name for c in columns])}"
    reading = ImageReading.from_json(preprocessing)
    kind = "grey" if reading.mode == "L" else "RGB"
    return f"{kind} images {'resized to' if reading.resize else 'of'} {format_size(reading.size)} pixels"


def _privacy(record: RunRecord) -> list[str]:
    statement = record.replayed
    if statement is None:
        return ["**Not known: there is no ledger that can be read.**"]
    unit = "One training example" + (
        ", added or removed." if statement.adjacency == "add-or-remove-one" else "; how many there are is public."
    )
    lines = [f"**{_text(statement.in_short)}**", "", f"Unit: {unit}", "", f"In full: {_text(statement.in_words)}"]
    doubts = [line for doubt in record.doubts for line in ("", f"**{_text(doubt)}**")]
    return [*lines, *doubts, *_damage(record, names.LEDGER)]


def _accuracy(record: RunRecord) -> list[str]:
    if record.metrics is None:
        return ["Not measured."]
    try:
        metrics = RunMetrics.from_json(record.metrics)
    except InvalidInputError:
        return [f"Not known: {names.METRICS} is damaged."]
    if metrics.test_accuracy is None:
        return ["Not measured: training had no test set."]
    if metrics.test_balance is None:
        return [f"{metrics.test_accuracy:.4f} right of {metrics.test_images:,} test examples; by class not known."]
    known = class_names(record)
    right, _, *warnings = metrics.test_balance.lines(known)
    lines = [f"Of the test set, {_text(right)}.", "", *_class_rows(metrics.test_balance, known)]
    return [*lines, *(line for warning in warnings for line in ("", f"**{_text(warning)}**"))]


def _class_rows(balance: ClassBalance, known: Sequence[str] | None) -> list[str]:
    """Return examples and recall of each class; of very many classes, of those with the lowest recall."""
    recall = {number: share for number, share in enumerate(balance.recall) if share is not None}
    shown = sorted(sorted(recall, key=lambda number: recall[number])[:MOST_CLASSES])
    rows = [
        (_text(class_name(k, known)), f"{balance.examples[k]:,}", f"{balance.right[k]:,}", f"{recall[k]:.3f}")
        for k in shown
    ]
    more = [("others, with a higher recall", "", "", "")] if len(recall) > len(shown) else []
    return _table(("class", "test examples", "right", "recall"), [*rows, *more])


def _robustness(record: RunRecord) -> list[str]:
    tables = certificate_tables(record)
    damage = _damage(record, names.CERTIFICATES, names.CERTIFICATE_RECORD, names.SENSITIVITY)
    if not tables and damage:
        return damage[1:]
    if not tables:
        by = "the votes of its noise" if is_noisy(record) else "interval bounds, if its layers have them"
        return [f"No test prediction is certified yet. `securesgd certify RUN` does it, by {by}."]
    lines: list[str] = []
    for table in map(_with_short_rules, tables):
        lines += [f"**{table['short']}**", ""]
        lines += [f"Certified accuracy in {table['norm']}{table['by']}, {table['examples']} test examples:", ""]
        rows = [
            (
                _text(f"{row['rule']} ({row['caveat']})" if row["caveat"] else row["rule"]),
                *(_share(share) for share in row["shares"]),
                f"{row['mean']:.4f}",
            )
            for row in table["rows"]
        ]
        lines += _table(("rule", *(f"at {radius}" for radius in table["radii"]), "mean radius"), rows)
        lines += ["", f"In full: {table['words']}", ""]
        if table["columns"]:
            cells = [(_text(row["name"]), row["range"], row["radius"]) for row in table["columns"]]
            lines += ["Half of the right predictions are proven for, in the units of the columns:", ""]
            lines += [*_table(("column", "range", "may move by"), cells), ""]
        lines += [line for check in table["checks"] for line in (_text(check), "")]
    return [*lines[:-1], *damage]


def _with_short_rules(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table of certificates with rules in files of the user's own cut down to the last part of their paths."""
    short = {row["rule"]: Path(row["rule"]).name for row in table["rows"]}

    def shorten(words: str) -> str:
        for rule, name in short.items():
            words = words.replace(rule, name)
        return words

    rows = [row | {"rule": short[row["rule"]]} for row in table["rows"]]
    return table | {"rows": rows, "words": shorten(table["words"]), "checks": list(map(shorten, table["checks"]))}


def _attacks(record: RunRecord) -> list[str]:
    attacks, damage = attack_rows(record), _damage(record, names.ATTACKS, names.ATTACK_RECORD)
    if not attacks and damage:
        return damage[1:]
    if not attacks:
        return ["The model was not attacked yet. `securesgd attack RUN --attack all` does it."]
    rows = [
        (
            _text(Path(str(row["attack"])).name),
            f"{row['norm']} {row['budget']}",
            row["images"],
            *(_share(row[name]) for name in ("clean", "attacked")),
        )
        for row in attacks
    ]
    warnings = [line for warning in attack_warnings(record) for line in ("", f"**{_text(warning)}**")]
    header = ("attack", "budget", "test examples", "right before", "right under attack")
    return [*_table(header, rows), *warnings, *damage]


def _limits(record: RunRecord) -> list[str]:
    statement = None if record.replayed is None else record.replayed.json()
    lines = [
        *not_guaranteed(statement),
        "Accuracies are about the test set above. For inputs of another origin nothing was measured, and classes with "
        "a low recall are often missed.",
    ]
    return [f"- {line}" for line in lines]


def _checks(record: RunRecord) -> list[str]:
    commands = check_commands(record, "RUN")
    use = "securesgd predict RUN FILES        # classes of new inputs, each with a proven radius"
    return ["RUN is the folder that this card came in.", "", "```", *commands.splitlines()[1:], use, "```"]
