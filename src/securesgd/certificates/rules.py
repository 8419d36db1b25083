"""Certificate rules by name: those of the table in `securesgd.theory.certificates`, and functions from outside.

A rule from outside is an import path, `package.module:function`. Its radii are stored beside the others by that
name, but whether they are true is not known here: they are shown without guarantee. Only a path that the user gives is
imported. One that a run folder records is not: its radii are shown as they are stored, and are not rechecked.
"""

__all__ = ["certificate_rules", "radius_rules", "recorded_rules"]

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from securesgd.errors import DamagedFileError, InvalidInputError, nearest
from securesgd.runtime.import_path import is_import_path, load_function
from securesgd.theory.certificates import BUILT_IN_RULES, CERTIFICATE_RULES, CertificateRule


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


def radius_rules(row: Mapping[str, Any]) -> list[str]:
    """Return the rules by which a row of certificates.csv has radii."""
    return [column.removeprefix("radius_") for column in row if column.startswith("radius_")]


def recorded_rules(record: Mapping[str, Any]) -> list[str]:
    """Return the rules whose radii an entry of certificates.json records; those of this package if it names none.

    Raises: DamagedFileError if the entry leaves out a rule of this package, or does not list names.
    """
    rules = record.get("rules", list(BUILT_IN_RULES))
    if not (isinstance(rules, list) and all(isinstance(rule, str) for rule in rules)):
        raise DamagedFileError(f"certificates.json has {rules!r} as rules; valid: a list of names")
    if not set(BUILT_IN_RULES) <= set(rules):
        raise DamagedFileError(f"certificates.json has the rules {', '.join(rules)}, without all of this package's")
    return rules
