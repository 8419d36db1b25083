"""Which weights a certificate is about: their fingerprint, and Δ of the noisy layer kept beside it."""

__all__ = ["fingerprint", "known_sensitivity"]

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from securesgd.errors import DamagedFileError
from securesgd.models.noisy import NoisyNetwork
from securesgd.report.rows import write_json
from securesgd.theory import Sensitivity


def fingerprint(model: nn.Module) -> str:
    """Return a digest of every weight and buffer: two models with the same one give the same certificates."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        digest.update(values.flatten().numpy().tobytes())
    return digest.hexdigest()


def known_sensitivity(model: NoisyNetwork, norm: str, path: Path) -> Sensitivity:
    """Return Δ of the layer in `norm`, proven now or read from `path`, where it is kept with the weights' fingerprint.

    Raises: DamagedFileError if the file is about other weights, or is not such a file: it is left untouched.
    """
    weights = fingerprint(model)
    known: dict[str, Any] = {}
    if path.exists():
        known = _read(path)
        if known["weights"] != weights:
            raise DamagedFileError(
                f"{path} is about other weights than the model's: one of them was replaced. If that was meant, delete "
                f"{path.name} and the certificates beside it"
            )
        if norm in known["norms"]:
            entry = known["norms"][norm]
            return Sensitivity(norm=norm, **entry | {"direction": np.array(entry["direction"])})
    found = model.sensitivity(norm)  # type: ignore[arg-type]
    kept = asdict(found) | {"direction": found.direction.tolist()}
    del kept["norm"]
    write_json(path, {"weights": weights, "norms": known.get("norms", {}) | {norm: kept}})
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for entry in content["norms"].values():
            if not (np.isfinite(entry["upper"]) and 0 <= entry["lower"] <= entry["upper"]):
                raise ValueError("Δ out of order")
        str(content["weights"])
        return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path} is not a record of sensitivities ({error}); delete it") from None
