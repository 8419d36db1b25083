"""Which weights a certificate is about: their fingerprint, and Δ of the noisy layer kept beside it."""

__all__ = ["fingerprint", "known_sensitivity"]

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from securesgd.errors import DamagedFileError
from securesgd.models.noisy import NoisyNetwork
from securesgd.storage import read_json, write_json
from securesgd.theory import Sensitivity


def fingerprint(module: nn.Module) -> str:
    """Return a digest of every weight and buffer, and of the kinds of layers: the same one, the same certificates."""
    digest = hashlib.sha256()
    for name, part in module.named_modules():
        digest.update(f"{name} {type(part).__name__}".encode())
    for name, tensor in sorted(module.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        digest.update(values.flatten().numpy().tobytes())
    return digest.hexdigest()


def known_sensitivity(model: NoisyNetwork, norm: str, path: Path, *, again: bool = False) -> Sensitivity:
    """Return Δ of the layer in `norm`, proven now or read from `path`, where it is kept with the layer's fingerprint.

    Raises: DamagedFileError if the file is about other weights, or is not such a file: it is left untouched. `again`
    proves Δ anew and replaces it.
    """
    weights = fingerprint(model.noisy)
    known: dict[str, Any] = {}
    if path.exists():
        content = _read(path)
        if content["weights"] == weights:
            known = content["norms"]
        elif not again:
            raise DamagedFileError(
                f"{path} is about other weights than the model's: one of them was replaced; --again proves it anew"
            )
    if norm in known and not again:
        return Sensitivity(norm=norm, **known[norm] | {"direction": np.array(known[norm]["direction"])})
    found = model.sensitivity(norm)  # type: ignore[arg-type]
    kept = asdict(found) | {"direction": found.direction.tolist()}
    del kept["norm"]
    write_json(path, {"weights": weights, "norms": known | {norm: kept}})
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
        for norm, entry in content["norms"].items():
            direction = np.asarray(entry["direction"], dtype=np.float64)
            Sensitivity(norm=norm, **entry | {"direction": direction})
            if not (np.isfinite(entry["upper"]) and 0 <= entry["lower"] <= entry["upper"]):
                raise ValueError("Δ out of order")
        str(content["weights"])
        return content
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path} is not a record of sensitivities ({error}); move it away") from None
