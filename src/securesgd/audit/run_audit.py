"""The audit of a run: the claim of its ledger, the training of its configuration, and audit.json in its folder."""

__all__ = ["audit_run"]

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from securesgd.audit.claim import claim_of_ledger
from securesgd.audit.measure import AuditSettings, audit_training, audited_training
from securesgd.audit.record import AUDIT
from securesgd.config import RunConfig
from securesgd.data.stored_inputs import StoredInputs
from securesgd.models.networks import NETWORKS
from securesgd.privacy import read_ledger
from securesgd.runtime import run_folder as names
from securesgd.runtime.processes import Processes
from securesgd.runtime.storage import require_writable, write_json


def audit_run(
    folder: Path,
    config: RunConfig,
    record: dict[str, Any],
    model: nn.Module,
    settings: AuditSettings | None = None,
    *,
    input_range: tuple[float, float] | None,
    own_examples: tuple[Tensor | StoredInputs, Tensor] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Return what an audit of the run in `folder` proves, and keep it there unless it is a test of the audit itself.

    Guarantee: as `Run.audit`. `record` is the content of model.json; a copy of `model` is trained anew if it is not a
    built-in network, on the device of `model` in any case.
    Raises: InvalidInputError if the folder cannot be written to, before anything is trained.
    """
    settings = settings or AuditSettings()
    require_writable(folder)
    claim = claim_of_ledger(read_ledger(folder / names.LEDGER))
    training = audited_training(
        config, claim, input_shape=tuple(record["input_shape"]), classes=int(record["classes"]),
        steps=record.get("steps"), input_range=input_range,
        network=None if config.network in NETWORKS else copy.deepcopy(model),
        own_examples=own_examples, device=next(model.parameters()).device,
    )  # fmt: skip
    result = audit_training(training, claim, settings, on_progress=on_progress)
    if settings.sabotage is None and settings.insert:
        Processes().on_first(lambda: write_json(folder / AUDIT, result))
    return result
