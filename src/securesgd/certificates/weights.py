"""Which weights a certificate is about: their fingerprint, and Δ of the noisy layer kept beside it."""

__all__ = ["fingerprint", "known_sensitivity"]

import hashlib
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.storage import read_json, write_json
from securesgd.theory import Sensitivity

_ARRAYS = ("direction", "proof")


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
    """Return Δ of the layer in `norm`, proven now, or by the proof in `path`, where it is kept with the layer's digest.

    Guarantee: the file is not believed. Its proof is carried out again and its direction applied again, which takes no
    longer than finding them; an entry without a proof is proven anew.
    Raises: DamagedFileError if the file is about other weights, states another Δ than its proof gives, or is not such a
    file: it is left untouched. `again` proves Δ anew and replaces it.
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
    if "proof" in known.get(norm, {}) and not again:
        return _proven_again(model, norm, known[norm], path)
    found = model.sensitivity(norm)  # type: ignore[arg-type]
    kept = asdict(found) | {name: getattr(found, name).tolist() for name in _ARRAYS}
    del kept["norm"]
    write_json(path, {"weights": weights, "norms": known | {norm: kept}})
    return found


def _proven_again(model: NoisyNetwork, norm: str, entry: dict[str, Any], path: Path) -> Sensitivity:
    """Return Δ by the proof of an entry. Raises: DamagedFileError if the entry states something else."""
    try:
        arrays = {name: np.array(entry[name], dtype=np.float64) for name in _ARRAYS}
        stated = Sensitivity(norm=norm, **entry | arrays)
        proven = model.sensitivity(norm, stated)  # type: ignore[arg-type]
    except (InvalidInputError, KeyError, ValueError, TypeError) as error:
        raise DamagedFileError(f"{path} has no proof of Δ in {norm} ({error}); --again proves it anew") from None
    for name in ("upper", "lower"):
        says, is_ = getattr(stated, name), getattr(proven, name)
        if not math.isclose(says, is_, rel_tol=1e-9):
            raise DamagedFileError(
                f"{path} states {says:g} as the {name} bound of Δ in {norm}, but its proof gives {is_:g}: the file was "
                "changed; --again proves it anew"
            )
    return replace(proven, seconds=stated.seconds)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
        for entry in content["norms"].values():
            if not (np.isfinite(entry["upper"]) and 0 <= entry["lower"] <= entry["upper"]):
                raise ValueError("Δ out of order")
        str(content["weights"])
        return content
    except (DamagedFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path} is not a record of sensitivities ({error}); move it away") from None
