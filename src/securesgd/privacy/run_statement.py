"""The full privacy statement of a run folder, read without torch and without writing anything."""

__all__ = ["run_statement"]

from collections.abc import Iterable
from pathlib import Path

import safetensors

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.privacy.full_statement import FullStatement, full_statement
from securesgd.privacy.group import GROUP_SIZES
from securesgd.privacy.ledger import LedgerContents, read_ledger
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import open_regular, parse_json, read_json

_VERSIONS = ("securesgd", "dp-accounting", "torch", "numpy", "scipy")


def run_statement(folder: str | Path, *, groups: Iterable[int] = GROUP_SIZES) -> FullStatement:
    """Return the full statement of a run, finished or not, computed now from its ledger.

    Guarantee: every line of the ledger was checked against its chain, its epsilon against its events, and of a finished
    run that it is the ledger of the weights. Only reads.
    Raises: InvalidInputError if the folder has no ledger or a number of `groups` is outside 2 to 100; DamagedFileError
    if a file is damaged, or the ledger is not the one of the weights.
    """
    folder = Path(folder)
    if not (folder / names.LEDGER).exists():
        raise InvalidInputError(f"{folder} has no {names.LEDGER}; valid: the folder of a run")
    ledger = read_ledger(folder / names.LEDGER)
    weights = folder / names.WEIGHTS
    if weights.exists():
        _require_own_ledger(ledger, folder)
    return full_statement(
        ledger, groups=groups, versions=_versions(folder, ledger), finished=names.RunFolder(folder).complete
    )


def _require_own_ledger(ledger: LedgerContents, folder: Path) -> None:
    """Raise DamagedFileError unless the record of the weights names a line of the ledger."""
    path = folder / names.WEIGHTS
    open_regular(path).close()  # the library would wait for a pipe
    try:
        with safetensors.safe_open(path, framework="np") as file:
            index, digest = parse_json((file.metadata() or {})["record"])["ledger"]
        own = ledger.has_line(int(index), str(digest))
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} does not say which ledger it was trained with: {error}") from None
    if not own:
        raise DamagedFileError(
            f"{folder / names.LEDGER} is not the ledger that {names.WEIGHTS} was trained with, or lines of it were cut "
            "off; put the whole one back"
        )


def _versions(folder: Path, ledger: LedgerContents) -> dict[str, str | None]:
    """Return the versions that the run was made with; of an unfinished one those that its ledger has."""
    stated: dict[str, str | None] = dict.fromkeys((*_VERSIONS, "python"))
    stated["securesgd"] = ledger.header.securesgd_version
    stated["dp-accounting"] = ledger.header.accountant_version.removeprefix("dp-accounting ")
    path = folder / names.ENVIRONMENT
    if not path.exists():
        return stated
    record = read_json(path)
    try:
        found = {name: record["versions"].get(name) for name in _VERSIONS} | {"python": record["python"]}
        return stated | {name: str(version) for name, version in found.items() if version is not None}
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path} is damaged: {type(error).__name__} {error}") from None
