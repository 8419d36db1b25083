"""One process at a time in a run folder that writes results."""

__all__ = ["locked_folder"]

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securesgd.errors import InvalidInputError


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep others out within the context. Raises: InvalidInputError if another process certifies or attacks there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"another process is certifying or attacking {folder}; wait for it to end"
            raise InvalidInputError(message) from None
        yield
    finally:
        os.close(descriptor)
