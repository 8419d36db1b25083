"""Image files as rows that are decoded when they are asked for, several at once."""

__all__ = ["ImageRows", "decode_images"]

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securesgd.data.image_files import read_pixels
from securesgd.errors import DamagedFileError, InvalidInputError

_AT_ONCE = 256
"""Images that are decoded, or wait for it, at a time."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ImageRows:
    """Images of one mode and size, one file each, decoded when they are read; a RowSource of channels, height, width.

    Assumes: the files were decoded once before, to find what is wrong with them.
    """

    def __init__(self, folder: Path, files: Sequence[str], mode: str, size: tuple[int, int]) -> None:
        self.place, self.kind = str(folder), np.dtype(np.uint8)
        self.shape: tuple[int, ...] = (len(files), len(mode), size[1], size[0])
        self._folder, self._files, self._mode, self._size = folder, files, mode, size

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the images at these numbers. Raises: DamagedFileError if a file is not what it was."""
        images = np.empty((len(numbers), *self.shape[1:]), np.uint8)
        for row, pixels in enumerate(decode_images(self._one, numbers.tolist())):
            images[row] = pixels.transpose(2, 0, 1)
        return images

    def _one(self, number: int) -> NDArray[np.uint8]:
        file = self._files[number]
        try:
            return read_pixels(self._folder / file, self._mode, self._size)
        except InvalidInputError as error:
            raise DamagedFileError(
                f"{self._folder / file} changed while it was used: it {error}; put it back and start again"
            ) from None


def decode_images(decode: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield decode(item) for each item, in order, some of them ahead on all cores.

    Threads, since Pillow decodes without Python's lock, and a process would have to be given every picture back.
    """
    rest = iter(items)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting: Any = [pool.submit(decode, item) for item in islice(rest, _AT_ONCE)]
        while waiting:
            done, waiting = waiting[: _AT_ONCE // 2], waiting[_AT_ONCE // 2 :]
            for future in done:
                yield future.result()
            waiting += [pool.submit(decode, item) for item in islice(rest, len(done))]
