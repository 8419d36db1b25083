"""The user's own data in one .npz file: x_train, y_train, x_test, y_test and optionally classes."""

__all__ = ["npz_arrays"]

import zipfile
import zlib
from pathlib import Path

import numpy as np

from securesgd.data.arrays import CheckedArrays, checked_arrays
from securesgd.errors import DamagedFileError, InvalidInputError

_KEYS = ("x_train", "y_train", "x_test", "y_test")


def npz_arrays(path: Path) -> CheckedArrays:
    """Return the checked arrays of a .npz file; `classes` in it may be their number or their names.

    Guarantee: no pickle is read, so the file cannot run code.
    Raises: DamagedFileError if it cannot be read; InvalidInputError if an array is missing or not valid.
    """
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise DamagedFileError(f"{path} is not a .npz file; make one with numpy.savez")
        with opened as archive:
            missing = [key for key in _KEYS if key not in archive]
            if missing:
                held = ", ".join(archive.files) or "nothing"
                raise InvalidInputError(f"{path} lacks {', '.join(missing)}; it holds {held}")
            x_train, y_train, x_test, y_test = (archive[key] for key in _KEYS)
            told = archive.get("classes")
    except InvalidInputError:
        raise
    except FileNotFoundError:
        raise InvalidInputError(f"{path} does not exist") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedFileError(f"{path} cannot be read as .npz without pickle: {error}") from None
    if told is None:
        classes = None
    elif told.ndim == 0 and np.issubdtype(told.dtype, np.integer):
        classes = int(told)
    elif told.ndim == 1 and told.dtype.kind == "U":
        classes = told.tolist()
    else:
        raise InvalidInputError(
            f"{path}: classes has shape {told.shape} of {told.dtype}; valid: a whole number, or the names as text"
        )
    return checked_arrays((x_train, y_train), (x_test, y_test), classes, str(path))
