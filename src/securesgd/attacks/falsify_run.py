"""The search for counter-examples to the certificates that a run folder holds, of either family."""

__all__ = ["falsify_certificates"]

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from securesgd.attacks.falsify import falsify_run
from securesgd.attacks.falsify_intervals import falsify_run_intervals
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL, record_key
from securesgd.certificates.sensitivity import known_sensitivity
from securesgd.certificates.stored_certificates import examples_digest
from securesgd.errors import InvalidInputError, nearest
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import read_json
from securesgd.runtime.tables import read_rows

_EFFORT = ("restarts", "steps", "eot", "seed", "failure_prob")


def falsify_certificates(
    folder: Path,
    model: nn.Module,
    test_set: Callable[[], tuple[Tensor, Tensor]],
    *,
    norm: str,
    family: str | None,
    examples: int | None,
    on_progress: Callable[[str, float], None] | None = None,
    **effort: Any,
) -> dict[str, Any]:
    """Search the certified balls of a norm, or of the interval family, for a counter-example; see `Run.falsify`."""
    for name in effort:
        if name not in _EFFORT:
            raise InvalidInputError(f"unknown setting {name!r} of a search: {nearest(name, _EFFORT)}")
    settings = CertifySettings(family=family).for_model(model)
    key = INTERVAL if settings.family == INTERVAL else norm
    path = folder / names.CERTIFICATE_RECORD
    records = read_json(path) if path.exists() else {}
    if key not in records:
        what = "interval certificates" if key == INTERVAL else f"certificates in {key}"
        raise InvalidInputError(f"{folder} has no {what} to search; certify it first")
    inputs, targets = test_set()
    if records[key]["data"] != examples_digest(inputs, targets):
        raise InvalidInputError(f"the {key} certificates of {folder} are about another test set; give that one")
    rows = [row for row in read_rows(folder / names.CERTIFICATES) if record_key(row) == key]
    rows = rows if examples is None else [row for row in rows if row["index"] < examples]
    if key == INTERVAL:
        return falsify_run_intervals(
            folder, model, inputs, rows, records[key]["settings"], on_progress=on_progress,
            **{name: value for name, value in effort.items() if name in ("restarts", "steps", "seed")},
        )  # fmt: skip
    if not isinstance(model, NoisyNetwork):
        raise InvalidInputError(f"{folder} has a model without noise, so no certificates in {key} to search")
    bound = known_sensitivity(model, key, folder / names.SENSITIVITY)
    return falsify_run(
        folder, model, inputs, rows,
        certificate_failure_prob=records[key]["settings"]["failure_prob"], direction=bound.direction,
        on_progress=on_progress, **effort,
    )  # fmt: skip
