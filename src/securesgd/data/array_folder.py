"""A folder of .npy files, for data larger than memory: training inputs are read as they are sampled.

`reading.json` in it, which `securesgd data convert` writes, says what the arrays were made from: the classes by name,
how training and test examples were divided, and the preprocessing that new raw inputs need.
"""

__all__ = [
    "ARRAY_NAMES",
    "AS_GIVEN",
    "ArrayReading",
    "is_array_folder",
    "load_array",
    "read_array_folder",
    "require_same_reading",
]

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securesgd.data.array_rows import ArrayRows
from securesgd.data.arrays import DataArrays, SourceData, class_names, require_memory, validate_arrays
from securesgd.data.image_reading import ImageReading
from securesgd.data.problems import join_some
from securesgd.data.schema import Schema
from securesgd.data.stored_inputs import StoredInputs
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime.storage import open_regular, read_json, write_json
from securesgd.validate import validate_text

ARRAY_NAMES = ("train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy")
READING = "reading.json"
AS_GIVEN = "train and test as given"


@dataclass(frozen=True, kw_only=True)
class ArrayReading:
    """What arrays were made from: classes by name, how they were divided, preprocessing of raw inputs (see SourceData).

    Raises: InvalidInputError if classes are not texts, all different.
    """

    classes: tuple[str, ...]
    split: str = AS_GIVEN
    by_share: bool = False
    preprocessing: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_text("split", self.split)
        class_names([validate_text("a class", name) for name in self.classes])

    def write(self, folder: Path) -> None:
        """Write the record to the reading.json of a folder."""
        write_json(folder / READING, asdict(self))

    @staticmethod
    def read(folder: Path) -> "ArrayReading | None":
        """Return the record of a folder, None if it has none. Raises: DamagedFileError."""
        place = folder / READING
        if not place.exists():
            return None
        match read_json(place):
            case {"classes": [*names], "split": str(split), "by_share": bool(share), "preprocessing": dict(made)}:
                try:
                    return ArrayReading(classes=tuple(names), split=split, by_share=share, preprocessing=made)
                except InvalidInputError as error:
                    raise DamagedFileError(f"{place} is damaged: {error}") from None
        raise DamagedFileError(f"{place} is damaged; needed: classes, split, by_share and preprocessing")

    def require_fit(self, arrays: DataArrays, folder: Path) -> None:
        """Raise InvalidInputError unless the preprocessing makes inputs of the shape and classes of the arrays."""
        shape: tuple[int, ...]
        match self.preprocessing.get("kind"):
            case None if not self.preprocessing:
                return
            case "images":
                images = ImageReading.from_json(self.preprocessing)
                classes, shape = images.classes, (len(images.mode), images.size[1], images.size[0])
            case "table":
                schema = Schema.from_json(self.preprocessing.get("schema"))
                classes, shape = schema.classes, (len(schema.features),)
            case kind:
                raise InvalidInputError(f"{folder / READING}: kind is {kind!r}; needed: images or table")
        held = tuple(arrays.train_inputs.shape[1:])
        if classes != self.classes or shape != held:
            raise InvalidInputError(
                f"{folder / READING} describes inputs of shape {shape} and the classes {join_some(classes)}, beside "
                f"it are inputs of shape {held} and the classes {join_some(self.classes)}; convert the source again"
            )


def is_array_folder(path: Path) -> bool:
    """Return whether a path is a folder with arrays in it: it has a train_x.npy."""
    return (path / ARRAY_NAMES[0]).exists()


def read_array_folder(folder: Path) -> SourceData:
    """Return train_x.npy, train_y.npy, test_x.npy and test_y.npy of a folder, validated; train_x.npy stays on disk.

    Labels and test examples are held in memory. No pickle is read, so the files cannot run code. If there is a
    reading.json, classes, division and preprocessing are those in it.
    Raises: InvalidInputError for a missing file or what `load_data` refuses; DamagedFileError if one cannot be read.
    """
    missing = [name for name in ARRAY_NAMES if not (folder / name).exists()]
    if missing:
        raise InvalidInputError(f"{folder} lacks {', '.join(missing)}; needed: {', '.join(ARRAY_NAMES)}")
    reading = ArrayReading.read(folder)
    inputs = StoredInputs(ArrayRows(folder / ARRAY_NAMES[0]))
    train_y, test_x, test_y = (load_array(folder / name) for name in ARRAY_NAMES[1:])
    classes = None if reading is None else reading.classes
    arrays = validate_arrays((inputs, train_y), (test_x, test_y), classes, str(folder))
    if reading is None:
        return SourceData(arrays=arrays, split=AS_GIVEN)
    reading.require_fit(arrays, folder)
    return SourceData(
        arrays=arrays, split=reading.split, by_share=reading.by_share, preprocessing=reading.preprocessing
    )


def require_same_reading(own: Mapping[str, Any], of_run: Mapping[str, Any], folder: Path) -> None:
    """Raise InvalidInputError unless a folder was made from raw inputs in the way in which those of a run were read."""

    def meaning(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in preprocessing.items() if key not in ("resize", "skip_bad")}

    if meaning(own) != meaning(of_run):
        raise InvalidInputError(
            f"{folder} was made with another preprocessing than the run's; convert it with the schema, or with the "
            "classes, mode and size, of the run"
        )


def load_array(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file. Raises: DamagedFileError; InvalidInputError if memory does not suffice."""
    try:
        with open_regular(path) as file:
            require_memory(os.fstat(file.fileno()).st_size, str(path))
            array: NDArray[Any] = np.load(file, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive")
    except (OSError, ValueError, EOFError) as error:
        raise DamagedFileError(f"{path} cannot be read as .npy without pickle: {error}") from None
    return array
