"""A look at every file of a folder of images by class: train/<class>/ and test/<class>/, or the class folders alone."""

__all__ = ["FolderImage", "ImageFolder", "numbers_of", "scan_image_folder"]

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.image_files import ImageHeader, read_header, read_pixels
from securesgd.data.image_reading import ImageReading
from securesgd.data.image_rows import decode_images
from securesgd.data.problems import Problem, join_some
from securesgd.data.settings import FOLDER_SETTINGS, DataSettings, format_size
from securesgd.data.stored_inputs import stays_on_disk
from securesgd.errors import InvalidInputError

_SPLITS = ("train", "test")
_NEEDED = "needed: train/<class>/*.png|jpg and test/<class>/*.png|jpg, or the class folders alone"


@dataclass(frozen=True, kw_only=True)
class FolderImage:
    """An image whose header can be used: where it is, its split ("train", "test" or "all") and its class."""

    file: str
    split: str
    label: int
    header: ImageHeader


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFolder:
    """A folder after a look at every file.

    mode      "L" if every image is grey, else "RGB"
    size      that all images get; None if they have several and none was chosen
    images    that can be used; `pixels` is theirs as (n, height, width, channels), None if they stay on disk
    problems  everything that is wrong, also with the files left out
    """

    classes: tuple[str, ...]
    mode: str
    size: tuple[int, int] | None
    files: int
    images: tuple[FolderImage, ...]
    pixels: NDArray[np.uint8] | None
    problems: tuple[Problem, ...]


def scan_image_folder(
    folder: Path,
    settings: DataSettings,
    preprocessing: Mapping[str, Any] | None = None,
    *,
    test_only: bool = False,
    keep_pixels: bool = True,
) -> ImageFolder:
    """Return every image of a folder that can be used and every problem, after decoding every file.

    Pixels are kept if `keep_pixels` and they fit a quarter of the memory and settings do not ask for `on_disk`.
    Raises: InvalidInputError if settings do not apply or the folders are not those needed.
    """
    earlier = ImageReading.from_json(preprocessing) if preprocessing else None
    places = _split_places(folder, test_only)
    valid = FOLDER_SETTINGS if "all" in places else [name for name in FOLDER_SETTINGS if name != "test_share"]
    what = "a folder of images" if "all" in places else "a folder of images with train/ and test/"
    settings.require_only(valid, f"{folder} is {what}")
    if earlier is not None and settings.size not in (None, earlier.size if earlier.resize else None):
        raise InvalidInputError(
            f"resize is {settings.resize!r} but the run was trained with {format_size(earlier.size)}; leave it out"
        )
    problems: list[Problem] = []
    classes, listed = _list_files(folder, places, earlier.classes if earlier else None, problems)
    labels = {name: label for label, name in enumerate(classes)}
    images = _read_headers(folder, listed, labels, earlier, problems)
    size, mode = _shared_form(images, settings, earlier)
    if size is not None and stays_on_disk(len(images) * numbers_of(size, mode), settings.on_disk):
        keep_pixels = False
    usable, pixels = _decode(folder, images, mode, size, keep_pixels, problems)
    if (form := _shared_form(usable, settings, earlier)) != (size, mode):  # only damaged files were different
        size, mode = form
        usable, pixels = _decode(folder, usable, mode, size, keep_pixels, problems)
    if usable and size is None:
        problems.append(_several_sizes(usable))
    if not usable:
        problems.append(Problem(file="", problem=f"there is no image that can be used; {_NEEDED}"))
    return ImageFolder(
        classes=classes,
        mode=mode,
        size=size,
        files=len(listed),
        images=tuple(usable),
        pixels=pixels,
        problems=tuple(problems),
    )


def _split_places(folder: Path, test_only: bool) -> dict[str, Path]:
    """Return the folder of class folders for each split."""
    present = [split for split in _SPLITS if (folder / split).is_dir()]
    if not present:
        return {"test" if test_only else "all": folder}
    needed = ("test",) if test_only else _SPLITS
    for split in needed:
        if split not in present:
            raise InvalidInputError(f"{folder / split} is not a folder; {_NEEDED}")
    return {split: folder / split for split in needed}


def _list_files(
    folder: Path, places: Mapping[str, Path], fixed: Sequence[str] | None, problems: list[Problem]
) -> tuple[tuple[str, ...], list[tuple[str, str, str]]]:
    """Return the classes, and (file, split, class) of every file in a class folder; order is that of the names."""
    found: dict[str, list[str]] = {}
    listed: list[tuple[str, str, str]] = []
    for split, place in places.items():
        found[split] = []
        for entry in _entries(place):
            name = entry.relative_to(folder).as_posix()
            if not entry.is_dir():
                inside = f"{split}/<class>" if split in _SPLITS else "<class>"
                problem = f"is not a class folder; needed: {inside}/*.png|jpg"
                problems.append(Problem(file=name, problem=problem, skippable=True))
                continue
            found[split].append(entry.name)
            files = [file.relative_to(folder).as_posix() for file in _entries(entry)]
            if not files and fixed is None:
                problems.append(Problem(file=name, problem="is empty; every class needs at least one image"))
            listed += [(file, split, entry.name) for file in files]
    classes = tuple(fixed or sorted(set().union(*found.values())))
    for split, names in found.items():
        for name in sorted(set(names) - set(classes)):
            problem = f"class {name!r} is none of the run's: {join_some(classes)}"
            problems.append(Problem(file="", problem=problem))
        if fixed is None:
            for name in sorted(set(classes) - set(names)):
                other = _SPLITS[split == "train"]
                problem = f"class {name!r} is in {other}/ but not in {split}/; both need every class"
                problems.append(Problem(file="", problem=problem))
    if len(classes) < 2:
        problem = f"a data set needs at least 2 classes, got {len(classes)}; {_NEEDED}"
        problems.append(Problem(file="", problem=problem))
    return classes, [row for row in listed if row[2] in classes]


def _entries(place: Path) -> list[Path]:
    return sorted(entry for entry in place.iterdir() if not entry.name.startswith("."))


def _read_headers(
    folder: Path,
    listed: Sequence[tuple[str, str, str]],
    labels: Mapping[str, int],
    earlier: ImageReading | None,
    problems: list[Problem],
) -> list[FolderImage]:
    """Return the images whose headers can be used, and read like those of the earlier folder if there is one."""
    images = []
    for file, split, name in listed:
        try:
            header = read_header(folder / file)
            if earlier is not None:
                earlier.require_fit(header)
        except InvalidInputError as error:
            problems.append(Problem(file=file, problem=str(error), skippable=True))
        else:
            images.append(FolderImage(file=file, split=split, label=labels[name], header=header))
    return images


def _shared_form(
    images: Sequence[FolderImage], settings: DataSettings, earlier: ImageReading | None
) -> tuple[tuple[int, int] | None, str]:
    """Return the size that all images get, None if they have several and none was chosen, and their mode."""
    if earlier is not None:
        return earlier.size, earlier.mode
    sizes = {image.header.size for image in images}
    size = settings.size or (sizes.pop() if len(sizes) == 1 else None)
    return size, "L" if all(image.header.grey for image in images) else "RGB"


def _decode(
    folder: Path,
    images: Sequence[FolderImage],
    mode: str,
    size: tuple[int, int] | None,
    keep_pixels: bool,
    problems: list[Problem],
) -> tuple[list[FolderImage], NDArray[np.uint8] | None]:
    """Return the images that can be decoded, and their pixels if these are kept and of one size."""
    pixels = None
    if keep_pixels and size is not None:
        pixels = np.empty((len(images), size[1], size[0], len(mode)), np.uint8)

    def pixels_or_reason(image: FolderImage) -> NDArray[np.uint8] | str:
        try:
            return read_pixels(folder / image.file, mode, size)
        except InvalidInputError as error:
            return str(error)

    usable: list[FolderImage] = []
    for image, decoded in zip(images, decode_images(pixels_or_reason, images), strict=True):
        if isinstance(decoded, str):
            problems.append(Problem(file=image.file, problem=decoded, skippable=True))
            continue
        if pixels is not None:
            pixels[len(usable)] = decoded
        usable.append(image)
    return usable, None if pixels is None else pixels[: len(usable)]


def numbers_of(size: tuple[int, int], mode: str) -> int:
    """Return how many numbers an image is."""
    return size[0] * size[1] * len(mode)


def _several_sizes(images: Sequence[FolderImage]) -> Problem:
    sizes = Counter(image.header.size for image in images).most_common()
    counts = [f"{format_size(size)} ({count:,})" for size, count in sizes]
    commonest, count = sizes[0]
    width, height = commonest if 2 * count >= len(images) and max(commonest) <= 64 else (32, 32)
    problem = f"the images have {len(sizes):,} sizes: {join_some(counts)}; give all the same with --resize "
    return Problem(file="", problem=problem + f"WIDTHxHEIGHT, like --resize {width}x{height}")
