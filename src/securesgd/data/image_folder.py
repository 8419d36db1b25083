"""The examples of a folder of images: read like an earlier one if there was one, and divided."""

__all__ = ["read_image_folder"]

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from securesgd.data.arrays import BY_SHARE, SourceData, require_memory, split_apart, split_source
from securesgd.data.image_reading import ImageReading
from securesgd.data.image_rows import ImageRows
from securesgd.data.image_scan import ImageFolder, numbers_of, scan_image_folder
from securesgd.data.problems import refuse_problems
from securesgd.data.settings import DataSettings, format_size
from securesgd.data.stored_inputs import StoredInputs


def read_image_folder(
    folder: Path,
    settings: DataSettings | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> SourceData:
    """Return the images in a fixed shuffled order, classes in the order of their names.

    Grey if every image is grey, else RGB. With train/ and test/ the split is theirs, else a random share is set apart
    with `seed`. With `preprocessing` the images are read as those that it was made from; if `settings` is None, too,
    only test examples are read: those of test/, or all. Files and folders whose name starts with a dot are ignored.
    Training images that would take more than a quarter of the memory, or all if `on_disk`, are decoded as they are
    sampled.
    Raises: InvalidInputError with every problem at once: folders or classes that are missing, files that are no
    images, cannot be read, are transparent or of 16 bits (left out with skip_bad), and several sizes without resize.
    """
    earlier = ImageReading.from_json(preprocessing) if preprocessing else None
    test_only = earlier is not None and settings is None
    settings = settings or DataSettings()
    scan = scan_image_folder(folder, settings, preprocessing, test_only=test_only)
    skip_bad = settings.skip_bad or (earlier is not None and earlier.skip_bad)
    refuse_problems(str(folder), [p for p in scan.problems if not (skip_bad and p.skippable)])
    if scan.size is None:
        raise AssertionError("several sizes, or none, are a problem that was refused")
    splits = np.array([image.split for image in scan.images])
    if "all" in splits:
        is_test = split_apart(len(splits), settings.test_share, seed)
        split = f"{BY_SHARE} {settings.test_share:g} of the folder set apart for testing with the run's seed"
    else:
        is_test = splits == "test"
        split = "the folder as test images" if test_only else "train/ and test/ of the folder"
    labels = np.array([image.label for image in scan.images], np.int64)
    if scan.pixels is None:
        require_memory(6 * int(is_test.sum()) * numbers_of(scan.size, scan.mode), f"test images of {folder}")
        rows = ImageRows(folder, [image.file for image in scan.images], scan.mode, scan.size)
        arrays = split_source(StoredInputs(rows), labels, is_test, scan.classes, str(folder))
    else:
        arrays = split_source(scan.pixels.transpose(0, 3, 1, 2), labels, is_test, scan.classes, str(folder))
    reading = earlier or ImageReading(
        classes=scan.classes,
        mode=scan.mode,
        size=scan.size,
        resize=settings.size is not None,
        skip_bad=settings.skip_bad,
    )
    return SourceData(
        arrays=arrays,
        split=split,
        by_share=split.startswith(BY_SHARE),
        preprocessing=reading.json(),
        notes=_notes(scan, reading),
    )


def _notes(scan: ImageFolder, reading: ImageReading) -> tuple[str, ...]:
    """Return what was left out and changed, a line for each file or kind of change."""
    notes = [f"left out: {problem}" for problem in scan.problems]
    resized = sum(image.header.size != reading.size for image in scan.images)
    if resized:
        notes.append(f"resized {resized:,} of {len(scan.images):,} images to {format_size(reading.size)}")
    converted = Counter(image.header.mode for image in scan.images if image.header.mode != reading.mode)
    notes += [f"converted {count:,} images of mode {mode} to {reading.mode}" for mode, count in converted.items()]
    return tuple(notes)
