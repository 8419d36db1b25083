"""A look at the user's own data before training: what is there, and everything that would stop a run."""

__all__ = ["DataCheck", "check_data"]

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from securesgd.data.array_folder import ARRAY_NAMES, is_array_folder, load_array, read_array_folder
from securesgd.data.array_rows import ArrayRows
from securesgd.data.image_scan import scan_image_folder
from securesgd.data.problems import Problem
from securesgd.data.settings import TABLE_SETTINGS, DataSettings, format_size
from securesgd.data.table import find_schema, is_table, schema_place, schema_template, table_notes
from securesgd.data.table_files import read_cells
from securesgd.errors import InvalidInputError, SecureSGDError


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """What a source of data holds. All of it describes the data, and is as private as the data.

    files      that were looked at: images (and what is among them), the files of a table, arrays that can be read
    classes    examples of each class, by split; "all" if the source is not split. Empty while a table has no schema
    sizes      images of each size; modes: of each of Pillow's modes
    rows       of a table, or labels of arrays; columns: their names in the order of the file
    problems   everything that is wrong; `stops` says whether training would be refused
    template   the text of a schema to be filled in, for a table that has none
    """

    kind: Literal["images", "table", "arrays"]
    files: int
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    columns: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    template: str | None = None
    skip_bad: bool = False

    @property
    def stops(self) -> bool:
        """Whether a problem is left that stops training: one that skip_bad does not step over."""
        return any(not (self.skip_bad and problem.skippable) for problem in self.problems)

    def json(self) -> dict[str, Any]:
        """Return the check as JSON."""
        return {
            "kind": self.kind,
            "files": self.files,
            "classes": self.classes,
            "sizes": self.sizes,
            "modes": self.modes,
            "rows": self.rows,
            "columns": list(self.columns),
            "problems": [{"file": problem.file, "problem": problem.problem} for problem in self.problems],
            "notes": list(self.notes),
            "template": self.template,
            "stops_training": self.stops,
        }


def check_data(path: str | PathLike[str], settings: DataSettings | None = None) -> DataCheck:
    """Return what a table or a folder of images or arrays holds, and all problems in one pass over every file.

    Raises: InvalidInputError if the path is neither, a folder has only one of train/ and test/, or settings do not
    apply.
    """
    place, settings = Path(path).expanduser(), settings or DataSettings()
    if is_array_folder(place):
        settings.require_only((), f"{place} is a folder of arrays")
        return _check_arrays(place)
    if place.is_dir():
        return _check_folder(place, settings)
    if not is_table(place):
        raise InvalidInputError(f"{place} is neither a folder nor a table (.csv, .tsv, .parquet); nothing to check")
    if not place.exists():
        raise InvalidInputError(f"{place} does not exist; valid: a folder of images or a table")
    settings.require_only(TABLE_SETTINGS, f"{place} is a table")
    return _check_table(place, settings)


def _check_folder(folder: Path, settings: DataSettings) -> DataCheck:
    scan = scan_image_folder(folder, settings, keep_pixels=False)
    classes: dict[str, dict[str, int]] = {}
    for (split, label), count in sorted(Counter((image.split, image.label) for image in scan.images).items()):
        classes.setdefault(split, {})[scan.classes[label]] = count
    return DataCheck(
        kind="images",
        files=scan.files,
        classes=dict(sorted(classes.items(), reverse=True)),  # train before test
        sizes=_ranked(format_size(image.header.size) for image in scan.images),
        modes=_ranked(image.header.mode for image in scan.images),
        problems=scan.problems,
        skip_bad=settings.skip_bad,
    )


def _check_arrays(folder: Path) -> DataCheck:
    problems, notes, loaded = [], [], {}
    for name in ARRAY_NAMES:
        try:
            if name == ARRAY_NAMES[0]:
                rows = ArrayRows(folder / name)
                held = f"{rows.kind} of shape {rows.shape}"
            else:
                loaded[name] = load_array(folder / name)
                held = f"{loaded[name].dtype} of shape {loaded[name].shape}"
            notes.append(f"{name}: {held}")
        except SecureSGDError as error:
            problems.append(Problem(file="", problem=str(error)))
    classes: dict[str, dict[str, int]] = {}
    if not problems:
        try:
            arrays = read_array_folder(folder).arrays
            for split, labels in (("train", arrays.train_targets), ("test", arrays.test_targets)):
                counts = np.bincount(labels, minlength=len(arrays.class_names)).tolist()
                classes[split] = dict(zip(arrays.class_names, counts, strict=True))
        except SecureSGDError as error:
            problems.append(Problem(file="", problem=str(error)))
    return DataCheck(
        kind="arrays",
        files=len(notes),
        classes=classes,
        rows=sum(len(loaded[name]) for name in ARRAY_NAMES[1::2] if name in loaded and loaded[name].ndim),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _ranked(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _check_table(path: Path, settings: DataSettings) -> DataCheck:
    places = [path] if settings.test is None else [path, Path(settings.test).expanduser()]
    splits = ["all"] if settings.test is None else ["train", "test"]
    problems: list[Problem] = []
    notes: list[str] = []
    classes: dict[str, dict[str, int]] = {}
    columns: tuple[str, ...] = ()
    rows, template = 0, None
    for split, place in zip(splits, places, strict=True):
        try:
            cells = read_cells(place)
            rows, header = rows + cells.rows, tuple(cells.columns)
            columns = columns or header
            if schema_place(path, settings) is None:
                template = template or schema_template(cells, settings.target)
            schema = find_schema(path, settings, header)
            encoded = schema.encode_rows(cells.columns)
        except SecureSGDError as error:
            problems.append(Problem(file="", problem=str(error)))
            continue
        problems += [Problem(file=place.name, problem=str(bad)) for bad in encoded.bad]
        notes += [f"{place.name}: {note}" for note in table_notes(schema, cells, encoded)]
        counts = Counter([] if encoded.targets is None else encoded.targets.tolist())
        classes[split] = {name: counts[label] for label, name in enumerate(schema.classes)}
    problems += _lacking_classes(classes)
    return DataCheck(
        kind="table",
        files=len(places),
        classes=classes,
        rows=rows,
        columns=columns,
        problems=tuple(problems),
        notes=tuple(notes),
        template=template,
    )


def _lacking_classes(classes: dict[str, dict[str, int]]) -> Sequence[Problem]:
    """Return a problem for each class of which there is no row to train on."""
    counts = classes.get("train", classes.get("all", {}))
    return [
        Problem(file="", problem=f"class {name!r} has no row; every class needs at least one training example")
        for name, count in counts.items()
        if not count
    ]
