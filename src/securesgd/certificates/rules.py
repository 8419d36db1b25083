"""Certificate rules by name: those of the table in `securesgd.theory.certificates`, and functions from outside.

A rule from outside is an import path, `package.module:function`. Its radii are stored beside the others by that
name, but whether they are true is not known here: they are shown without guarantee. Only a path that the user gives is
imported. One that a run folder records is not: its radii are shown as they are stored, and are not rechecked.

The interval family has rules of its own (`INTERVAL_RULES`): the radius that boxes prove, the one that linear bounds
prove, and as `tight` the larger one.
"""

__all__ = [
    "FAMILIES",
    "INTERVAL",
    "INTERVAL_RULES",
    "MAX_DRAWS",
    "SMOOTHING",
    "caveat_in",
    "certificate_rules",
    "radius_rules",
    "record_key",
    "recorded_rules",
]

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from securesgd.errors import DamagedFileError, InvalidInputError, nearest
from securesgd.runtime.import_path import is_import_path, load_function
from securesgd.theory.certificates import BUILT_IN_RULES, CERTIFICATE_RULES, CertificateRule, rule_caveat

SMOOTHING, INTERVAL = "smoothing", "interval"
FAMILIES = (SMOOTHING, INTERVAL)
INTERVAL_RULES = ("tight", "interval", "linear")
MAX_DRAWS = 10**7
"""Per example. The provable radius grows as the root of the logarithm of the draws: more would hardly show."""


def certificate_rules(additional: Iterable[str] = ()) -> dict[str, CertificateRule]:
    """Return the rules of the table and the `additional` ones, by name, in the order of their columns.

    Raises: InvalidInputError if a name is neither in the table nor the import path of a function.
    """
    rules = dict(CERTIFICATE_RULES)
    for name in additional:
        if name not in rules:
            rules[name] = _outside_rule(name)
    return rules


def _outside_rule(path: str) -> CertificateRule:
    if not is_import_path(path):
        raise InvalidInputError(
            f"unknown rule {path!r}: {nearest(path, CERTIFICATE_RULES)}, or an import path like package.module:function"
        )
    function: Callable[..., Any] = load_function(path, "the certificate rule")

    def radius(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # whatever a foreign function raises, the command ends with one line
            reason = (str(error).splitlines() or [""])[0]
            raise InvalidInputError(f"the certificate rule {path} failed: {type(error).__name__} {reason}") from error

    return CertificateRule(radius=radius, is_guarantee=False)


def record_key(row: Mapping[str, Any]) -> str:
    """Return the entry of certificates.json that a row belongs to: `interval`, or the norm if it is by smoothing.

    Rows without a family are of earlier versions, which had smoothing only.
    """
    return INTERVAL if row.get("family") == INTERVAL else str(row["norm"])


def radius_rules(row: Mapping[str, Any]) -> list[str]:
    """Return the rules by which a row of certificates.csv has radii; those of the other family are empty there."""
    return [c.removeprefix("radius_") for c, value in row.items() if c.startswith("radius_") and value is not None]


def recorded_rules(record: Mapping[str, Any]) -> list[str]:
    """Return the rules whose radii an entry of certificates.json records; those of this package if it names none.

    Raises: DamagedFileError if the entry leaves out a rule of its family, or does not list names.
    """
    is_interval = record["settings"].get("family") == INTERVAL
    own = INTERVAL_RULES if is_interval else BUILT_IN_RULES
    rules = record.get("rules", list(own))
    if not (isinstance(rules, list) and all(isinstance(rule, str) for rule in rules)):
        raise DamagedFileError(f"certificates.json has {rules!r} as rules; valid: a list of names")
    if not set(own) <= set(rules):
        raise DamagedFileError(f"certificates.json has the rules {', '.join(rules)}, without all of this package's")
    if is_interval and set(rules) > set(own):
        raise DamagedFileError(
            f"certificates.json has the rules {', '.join(rules)} for intervals; valid: {', '.join(own)}"
        )
    return rules


def caveat_in(key: str, rule: str) -> str:
    """Return what to say about radii by a rule in the entry `key` of certificates.json; empty if they are proven."""
    return "" if key == INTERVAL else rule_caveat(rule)
