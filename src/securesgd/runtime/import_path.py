"""Things from outside the package by import path: `package.module:function`, wherever a built-in name is accepted.

Only a path that the user gives is imported. One that is read from a run folder is not: importing is running code.
"""

__all__ = ["is_import_path", "load_function"]

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from securesgd.errors import InvalidInputError

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_import_path(name: object) -> bool:
    """Return whether `name` is written like `package.module:function`."""
    return isinstance(name, str) and _PATH.fullmatch(name) is not None


def load_function(path: str, what: str) -> Callable[..., Any]:
    """Return the function, or other callable, at an import path; `what` says in messages what it is for.

    The current folder is searched too, as for `python -m`.
    Raises: InvalidInputError, in one line, if it is no such path, the module cannot be imported or lacks the function.
    """
    if not is_import_path(path):
        raise InvalidInputError(f"{what} is {path!r}; valid: an import path like package.module:function")
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises, the command ends with one line
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(f"{what} {path!r}: the module {module_name} cannot be imported ({reason})") from error
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        raise InvalidInputError(f"{what} {path!r}: the module {module_name} has no function {attribute}")
    return value
