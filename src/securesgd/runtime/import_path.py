"""Functions from outside the package: `package.module:function` or `file.py:function`, wherever a name is accepted.

Only a path that the user gives is imported. One that is read from a run folder is not: importing is running code.
"""

__all__ = ["is_import_path", "load_function"]

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from securesgd.errors import InvalidInputError

_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_PATH = re.compile(rf"({_NAME}|[^:\0]+\.py):{_NAME}")


def is_import_path(name: object) -> bool:
    """Return whether `name` is written like `package.module:function` or `file.py:function`."""
    return isinstance(name, str) and _PATH.fullmatch(name) is not None


def load_function(path: str, what: str) -> Callable[..., Any]:
    """Return the function, or other callable, at an import path; `what` says in messages what it is for.

    The current folder is searched for modules first, as by `python -m`.
    Raises: InvalidInputError, in one line, if it is no such path, the module cannot be imported or lacks the function.
    """
    if not is_import_path(path):
        raise InvalidInputError(f"{what} is {path!r}; valid: package.module:function or file.py:function")
    module_name, _, attribute = path.rpartition(":")
    try:
        value: Any = _import_file(Path(module_name)) if module_name.endswith(".py") else _import_module(module_name)
    except Exception as error:  # whatever the user's module raises, the command ends with one line
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInputError(f"{what} {path!r}: {module_name} cannot be imported ({reason})") from error
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        raise InvalidInputError(f"{what} {path!r}: {module_name} has no function {attribute}")
    return value


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _import_file(file: Path) -> ModuleType:
    """Return the module of a file, once per process; its folder can be imported from, as in a script."""
    file = file.expanduser().resolve()
    name = f"{file.stem} ({file})"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise FileNotFoundError("there is no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
