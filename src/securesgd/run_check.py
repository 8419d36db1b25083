"""`check_run`: everything that a run folder claims, recomputed, also if the folder is too damaged to be loaded."""

__all__ = ["check_run"]

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from securesgd.build import NetworkSource
from securesgd.check.evidence import Evidence
from securesgd.check.folder import CHECKED, DEFAULT_EXAMPLES, check_files, check_network
from securesgd.check.outcome import CheckResult, Claim, Finding, NotCheckable, examine
from securesgd.check.records import unchecked_files
from securesgd.config import IN_MEMORY
from securesgd.data.load import LoadedData
from securesgd.errors import InvalidInputError, SecureSGDError
from securesgd.models.networks import NETWORKS
from securesgd.run import Run, load_run
from securesgd.run_data import load_other_data, load_run_data
from securesgd.runtime import run_folder as names
from securesgd.runtime.import_path import is_import_path
from securesgd.runtime.machine import torch_device
from securesgd.training.examples import tensors_of


def check_run(
    path: str | Path,
    *,
    network: NetworkSource | None = None,
    dataset: str | None = None,
    examples: int | None = DEFAULT_EXAMPLES,
    public_key: str | Path | None = None,
    device: str | None = None,
) -> CheckResult:
    """Recompute what a run folder claims, from what each claim rests on, and return a line for each.

    Guarantee: nothing is written, whatever the folder holds, and no code is imported that the caller did not name. What
    a line that is ok proves is in docs/how-to/check.md.
    Raises: InvalidInputError if it is not a run folder, or an argument is invalid.

    `network` is needed if it is not a built-in one, as in `load_run`; `dataset` says where the run's own data are, if
    not where they were. `examples` certificates of each norm, chosen at random (None: all), are computed again.
    `public_key` is the file of the key that must have signed the folder; `device` is where the network is put.
    """
    folder = Path(path)
    torch_device(device)  # refused here, and not as a claim that is false
    _require_use_for(network, folder)
    findings, loaded = check_files(folder, public_key), []

    def load(evidence: Evidence) -> str:
        if not evidence.has(names.MODEL):
            raise NotCheckable("training is not finished")
        try:
            loaded.append(load_run(folder, network=network, device=device))
        except InvalidInputError as error:
            if evidence.config.get("network") in NETWORKS:
                raise
            raise NotCheckable(f"{error} (--network)") from None
        return "the weights fit the network"

    claim = Claim(name="loading", files=(names.WEIGHTS, names.MODEL, names.CONFIG), check=load)
    findings.append(examine(claim, Evidence(folder), folder))
    for run in loaded:
        findings += _check_loaded(run, dataset, examples)
    return CheckResult((*findings, *unchecked_files(folder, CHECKED)))


def _require_use_for(network: NetworkSource | None, folder: Path) -> None:
    """Raise InvalidInputError if a network is given for a run that says it has a built-in one."""
    try:
        own = Evidence(folder).config.get("network")
    except (SecureSGDError, NotCheckable):
        return  # a damaged file is a finding
    if network is not None and own in NETWORKS and network != own:
        raise InvalidInputError(f"network is given, but {folder} has the built-in network {own}; leave it out")


def _check_loaded(run: Run, dataset: str | None, examples: int | None) -> list[Finding]:
    """Return the outcome of the claims that take the network of a run, with the data that can be found."""
    test_set: tuple[Tensor, Tensor] | None = None
    reason = ""
    try:
        test_set = tensors_of(run.data if dataset is None else _named_data(run, dataset))
    except (SecureSGDError, OSError) as error:
        if dataset is not None:
            raise
        reason = str(error)
    return check_network(run.path, run.config, run.model, test_set, reason, examples)


def _named_data(run: Run, dataset: str) -> LoadedData:
    """Return the data of a run from where the caller says they are, split as in training."""
    if is_import_path(dataset) or run.config.dataset == IN_MEMORY:
        return load_other_data(dataset, run.record)
    return load_run_data(run.path, replace(run.config, dataset=dataset), run.record)
