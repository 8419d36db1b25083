"""Option values that are more than one number or word."""

__all__ = ["numbers", "settings_of"]

from typing import Any

from securesgd.errors import InvalidInputError
from securesgd.runtime.storage import parse_json

_MOST_NUMBERS = 1000
"""Of one option: each is a row of a table, or an attack of minutes."""


def settings_of(changes: list[str]) -> dict[str, Any]:
    """Return the settings of --set options: numbers and true/false as such, everything else as text."""
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidInputError(f"--set takes key=value, got {change!r}")
        if name in ("dataset", "method"):
            raise InvalidInputError(f"--set {change}: use --{name} {text}")
        try:
            values[name] = parse_json(text)
        except ValueError:
            values[name] = text.strip()
        if values[name] is None:
            raise InvalidInputError(f"--set {change}: null is no value; leave the setting out to have its default")
    return values


def numbers(name: str, text: str) -> list[float]:
    """Return the numbers of an option like 0.5,1,4."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidInputError(f"--{name} must be a number or numbers like 0.5,1,4, got {text!r}") from None
    if len(values) > _MOST_NUMBERS:
        raise InvalidInputError(f"--{name} has {len(values):,} numbers; valid: at most {_MOST_NUMBERS:,}")
    return values
