"""The data of a run: found again where training had them, and read as in training.

The claims of a run folder name no place on a machine. Where the user's own data are is in `local.json`, which is for
the machine of the training only and may be deleted: a run that was moved finds its data by it.
"""

__all__ = ["keep_data_path", "load_other_data", "load_run_data"]

from dataclasses import replace
from pathlib import Path
from typing import Any

from securesgd.certificates.stored_certificates import examples_digest
from securesgd.config import IN_MEMORY, RunConfig
from securesgd.data.catalog import CATALOG
from securesgd.data.load import LoadedData, load_data
from securesgd.data.settings import DataSettings
from securesgd.errors import InvalidInputError
from securesgd.runtime import run_folder as names
from securesgd.runtime.import_path import is_import_path
from securesgd.runtime.storage import read_json, write_json


def load_run_data(folder: Path, config: RunConfig, record: dict[str, Any]) -> LoadedData:
    """Return the data set that a run was trained on, with the split and the preprocessing of the training.

    Raises: InvalidInputError if it was given in memory, is gone, or has other test examples now.
    """
    if config.dataset == IN_MEMORY:
        raise InvalidInputError(
            f"{folder} was trained on data in memory; give a test set: run.certify(test_set) or --dataset"
        )
    if is_import_path(config.dataset):
        raise InvalidInputError(f"{folder} was trained on {config.dataset}; give it again: --dataset {config.dataset}")
    if config.dataset in CATALOG:
        return load_data(config.dataset, holdout=config.holdout, seed=config.seed)
    path = _data_path(folder, "dataset", config.dataset)
    preprocessing = record.get("preprocessing")
    settings = config.data or DataSettings() if preprocessing else config.data
    if settings is not None and settings.test is not None:
        settings = replace(settings, test=str(_data_path(folder, "test", settings.test)))
    loaded = load_data(
        path, holdout=config.holdout, seed=config.seed, settings=settings, preprocessing=preprocessing
    )  # fmt: skip
    expected = record.get("test_sha256")
    if expected not in (None, examples_digest(loaded.test_inputs, loaded.test_targets)):
        raise InvalidInputError(
            f"{path} has other test examples than when {folder} was trained; put those back, or give a test set by "
            "--dataset"
        )
    return loaded


def load_other_data(dataset: str, record: dict[str, Any]) -> LoadedData:
    """Return other data than a run's own, preprocessed as in its training: scaling, sizes, classes and their order."""
    return load_data(dataset, preprocessing=record.get("preprocessing"))


def keep_data_path(folder: Path, config: RunConfig) -> None:
    """Write where the user's own data are to `local.json`; nothing for named data sets, import paths and tensors."""
    if config.dataset == IN_MEMORY or config.dataset in CATALOG:
        return
    given = {"dataset": config.dataset, "test": None if config.data is None else config.data.test}
    paths = {name: Path(text).expanduser() for name, text in given.items() if text is not None}
    found = {name: str(path.resolve()) for name, path in paths.items() if path.exists()}
    if found:
        write_json(folder / names.LOCAL, found)


def _data_path(folder: Path, name: str, given: str) -> Path:
    """Return the place of the user's data, or of their test rows: as given in training, or else where it was then."""
    path = Path(given).expanduser()
    if path.exists():
        return path
    local = folder / names.LOCAL
    known = read_json(local).get(name) if local.exists() else None
    if isinstance(known, str) and Path(known).exists():
        return Path(known)
    also = f", nor at {known}" if known else ""
    raise InvalidInputError(f"the data of {folder} are not at {path}{also}; say where they are: --dataset PATH")
