"""Any source of examples, read a piece at a time, as a folder of .npy files from which training reads as it samples."""

__all__ = ["convert_data"]

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from securesgd.data.array_folder import ARRAY_NAMES, ArrayReading, is_array_folder, read_array_folder
from securesgd.data.arrays import SourceData, class_names
from securesgd.data.image_folder import read_image_folder
from securesgd.data.npz_file import unpack_npz
from securesgd.data.settings import DataSettings
from securesgd.data.stored_inputs import StoredInputs
from securesgd.data.table import is_table
from securesgd.data.table_stream import stream_table
from securesgd.errors import InvalidInputError

Show = Callable[[int, int], None]
"""Called with the rows that were written and the rows there are."""
_PART = 1024
"""Images written at once."""
_VALID = "valid: a folder of images, a table (.csv, .tsv, .parquet) or a .npz file"


def convert_data(
    source: str | PathLike[str],
    out: str | PathLike[str],
    settings: DataSettings | None = None,
    *,
    seed: int = 0,
    progress: Show | None = None,
) -> SourceData:
    """Write the examples of a source to the folder `out` and return them, training inputs on disk.

    The source is a folder of images, a table or a .npz file, compressed or not; a piece of it is held at a time, and
    labels. If a share of it is set apart for testing, that is done with `seed`.
    Guarantee: `load_data(out)` has the bits of `load_data(source, settings=settings, seed=seed)`, the same classes and
    the same preprocessing, so that a run on either has the same weights and reads new inputs in the same way. `out`
    is there whole or not at all, and for its owner alone.
    Raises: InvalidInputError if `out` is there, for another kind of source, and whatever `load_data` refuses;
    DamagedFileError if the source cannot be read.
    """
    place, target = Path(source).expanduser(), Path(out).expanduser()
    settings = settings or DataSettings()
    _require_source(place)
    if target.exists() or target.is_symlink():
        raise InvalidInputError(f"{target} exists; valid: a new folder")
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target.parent} is not a folder; valid: a new folder in one that exists")
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        notes = _write(place, draft, settings, seed, progress or (lambda done, total: None))
        written = read_array_folder(draft)
        draft.rename(target)
    finally:
        if draft.exists():
            shutil.rmtree(draft)
    return replace(written, notes=notes)


def _require_source(place: Path) -> None:
    if is_array_folder(place):
        raise InvalidInputError(f"{place} is a folder of arrays already; train on it as it is")
    if not place.exists():
        raise InvalidInputError(f"{place} does not exist; {_VALID}")
    if not (place.is_dir() or is_table(place) or place.suffix == ".npz"):
        raise InvalidInputError(f"{place} cannot be converted; {_VALID}")


def _write(place: Path, draft: Path, settings: DataSettings, seed: int, show: Show) -> tuple[str, ...]:
    """Write the arrays of a source and its reading.json; return what was left out, resized, converted or clipped."""
    if place.is_dir():
        reading, notes = _write_images(place, draft, settings, seed, show)
    elif is_table(place):
        reading, notes = stream_table(place, draft, settings, seed, show)
    else:
        settings.require_only((), f"{place} is a .npz file")
        classes = unpack_npz(place, [draft / name for name in ARRAY_NAMES])
        if classes is None:
            return ()
        reading, notes = ArrayReading(classes=class_names(classes)), ()
    reading.write(draft)
    return notes


def _write_images(
    folder: Path, draft: Path, settings: DataSettings, seed: int, show: Show
) -> tuple[ArrayReading, tuple[str, ...]]:
    """Write the images of a folder, which are decoded twice: to find what is wrong, and to be written."""
    source = read_image_folder(folder, replace(settings, on_disk=True), None, seed)
    arrays = source.arrays
    if not isinstance(arrays.train_inputs, StoredInputs):
        raise AssertionError("on_disk was asked for")
    count, shape = len(arrays.train_inputs), tuple(arrays.train_inputs.shape)
    with (draft / ARRAY_NAMES[0]).open("xb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, count, _PART):
            file.write(np.ascontiguousarray(arrays.train_inputs.array(slice(start, start + _PART))).data)
            show(min(start + _PART, count), count)
    rest = (arrays.train_targets, arrays.test_inputs, arrays.test_targets)
    for name, array in zip(ARRAY_NAMES[1:], rest, strict=True):
        np.save(draft / name, np.ascontiguousarray(array))
    reading = ArrayReading(
        classes=arrays.class_names,
        split=source.split.replace("the run's seed", f"seed {seed}"),
        by_share=source.by_share,
        preprocessing=source.preprocessing,
    )
    return reading, source.notes
