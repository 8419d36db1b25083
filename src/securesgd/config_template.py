"""A configuration as a commented TOML file to start from: every setting with its value and what it means.

The comments are the documentation of the settings themselves, read from their source.
"""

__all__ = ["commented_toml", "field_documentation"]

import ast
import inspect
import textwrap
from dataclasses import fields
from typing import Any

import tomli_w

from securesgd.baselines.adlm.budget import AdlmSettings
from securesgd.config import RobustnessSettings, RunConfig
from securesgd.data.settings import DataSettings
from securesgd.models.interval_network import IntervalSettings
from securesgd.training.settings import TrainingSettings

_TABLES: dict[str, Any] = {
    "data": DataSettings,
    "training": TrainingSettings,
    "robustness": RobustnessSettings,
    "interval": IntervalSettings,
    "adlm": AdlmSettings,
}
_WIDTH = 110


def commented_toml(config: RunConfig) -> str:
    """Return the configuration as TOML with a comment on each setting; those without a value are commented out.

    Guarantee: read back as a configuration, it is the same one.
    """
    lines = ["# Train with: securesgd train --config THIS_FILE --out runs/a", ""]
    lines += _settings(config, RunConfig, skip=_TABLES)
    for name, settings in _TABLES.items():
        table = getattr(config, name)
        if table is None and name != "data":  # a table of another method
            continue
        lines += ["", f"[{name}]" if table is not None else f"# [{name}]   # of a table or a folder of images"]
        lines += _settings(table, settings)
    return "\n".join(lines) + "\n"


def _settings(values: Any, kind: type, skip: Any = ()) -> list[str]:
    """Return the lines of one table; of a table that is not there all are commented out."""
    documentation, lines = field_documentation(kind), []
    for field in fields(kind):
        if field.name in skip:
            continue
        words = " ".join(documentation[field.name].split()).replace("`", "").replace("None", "Not set")
        lines += textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        value = field.default if values is None else getattr(values, field.name)
        if value is None:
            lines.append(f"# {field.name} =")
        else:
            lines.append(("# " if values is None else "") + tomli_w.dumps({field.name: value}).strip())
    return lines


def field_documentation(settings: type) -> dict[str, str]:
    """Return the text under each field of a settings class. Raises: LookupError if a field has none."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                raise LookupError(f"{settings.__name__}.{field.target.id} has no documentation")
            texts[field.target.id] = str(after.value.value)
    return texts
