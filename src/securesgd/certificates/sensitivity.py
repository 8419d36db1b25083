"""The sensitivity Δ of a model's noisy layer: proven now, given, or read with its proof from the run folder."""

__all__ = [
    "ProvenSensitivities",
    "fingerprint",
    "known_sensitivity",
    "model_sensitivity",
    "published_whitened_sensitivity",
    "stored_sensitivity",
]

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
from securesgd.theory import Sensitivity, published_sensitivity

_ARRAYS = ("direction", "proof")


def model_sensitivity(model: NoisyNetwork, norm: str, given: Sensitivity | None) -> Sensitivity:
    """Return Δ of the model in `norm`: the given one if it fits, else computed and proven now.

    Raises: InvalidInputError if the given one is of another norm or model, or smaller than its own direction shows.
    """
    if given is None:
        return model.sensitivity(norm)  # type: ignore[arg-type]
    if given.norm != norm:
        raise InvalidInputError(f"the given sensitivity is in {given.norm}, the radii are asked in {norm}")
    if np.shape(given.direction) != (math.prod(model.input_shape),):
        raise InvalidInputError(f"the given sensitivity is of {np.size(given.direction)} inputs, the model has others")
    attained = float(np.linalg.norm(model.whitening * model.linear_map().apply(given.direction[:, None])[:, 0]))
    if not given.upper >= attained * (1 - 1e-9):
        raise InvalidInputError(
            f"the given sensitivity is {given.upper:g}, but its own direction moves the layer by {attained:g}; "
            "valid: what model.sensitivity(norm) returns"
        )
    return given


class ProvenSensitivities:
    """Δ of a model by norm, proven at the first call; other weights of the noisy layer are proven anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Sensitivity] = {}

    def of(self, model: nn.Module, norm: str) -> Sensitivity | None:
        """Return Δ of the model in `norm`; None for a model without noise, which has none."""
        if not isinstance(model, NoisyNetwork):
            return None
        key = norm, fingerprint(model.noisy)
        if key not in self._known:
            self._known[key] = model_sensitivity(model, norm, None)
        return self._known[key]


def published_whitened_sensitivity(model: NoisyNetwork, proven: Sensitivity) -> float:
    """Return the paper's Δ of the layer, in standard deviations per unit of input. **Without guarantee.**

    The paper has one for l_inf only; in the other norms its rule is taken with the proven Δ.
    """
    if proven.norm != "linf":
        return proven.upper
    variance = 1 / model.whitening**2
    return published_sensitivity(model.linear_map(), variance / variance.sum()) / float(np.sqrt(variance.mean()))


def fingerprint(module: nn.Module) -> str:
    """Return a digest of every weight and buffer and of the kinds of layers; equal digests have equal certificates."""
    digest = hashlib.sha256()
    for name, part in module.named_modules():
        digest.update(f"{name} {type(part).__name__}".encode())
    for name, tensor in sorted(module.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        digest.update(values.flatten().numpy().tobytes())
    return digest.hexdigest()


def known_sensitivity(model: NoisyNetwork, norm: str, path: Path, *, again: bool = False) -> Sensitivity:
    """Return Δ of the layer in `norm`, by the proof stored in `path` or else proven now and stored there.

    Guarantee: the file is not believed. Its proof is carried out again and its direction applied again, which takes no
    longer than finding them; an entry without a proof is proven anew.
    Raises: DamagedFileError if the file was made with other weights, states another Δ than its proof gives, or is not
    such a file: it is left untouched. `again` proves Δ anew and replaces it.
    """
    weights = fingerprint(model.noisy)
    known: dict[str, Any] = {}
    if path.exists():
        content = _read(path)
        if content["weights"] == weights:
            known = content["norms"]
        elif not again:
            raise DamagedFileError(
                f"{path} was made with other weights (sha256 {str(content['weights'])[:8]}…) than the model's "
                f"({weights[:8]}…): one of them was replaced; --again proves Δ anew"
            )
    if "proof" in known.get(norm, {}) and not again:
        return _repeat_proof(model, norm, known[norm], path)
    sensitivity = model.sensitivity(norm)  # type: ignore[arg-type]
    entry = asdict(sensitivity) | {name: getattr(sensitivity, name).tolist() for name in _ARRAYS}
    del entry["norm"]
    write_json(path, {"weights": weights, "norms": known | {norm: entry}})
    return sensitivity


def stored_sensitivity(model: NoisyNetwork, norm: str, path: Path) -> Sensitivity:
    """Return Δ of the layer in `norm` by the proof stored in `path`, carried out again. Only reads.

    Raises: DamagedFileError as `known_sensitivity` does, and if there is no proof in `path`.
    """
    content, weights = _read(path), fingerprint(model.noisy)
    if content["weights"] != weights:
        raise DamagedFileError(
            f"{path} was made with other weights (sha256 {str(content['weights'])[:8]}…) than the model's "
            f"({weights[:8]}…): one of them was replaced"
        )
    if norm not in content["norms"]:
        raise DamagedFileError(f"{path} has no proof of Δ in {norm}")
    return _repeat_proof(model, norm, content["norms"][norm], path)


def _repeat_proof(model: NoisyNetwork, norm: str, entry: dict[str, Any], path: Path) -> Sensitivity:
    """Return Δ by the proof of an entry. Raises: DamagedFileError if the entry states something else."""
    try:
        arrays = {name: np.array(entry[name], dtype=np.float64) for name in _ARRAYS}
        stated = Sensitivity(norm=norm, **entry | arrays)
        proven = model.sensitivity(norm, stated)  # type: ignore[arg-type]
    except (InvalidInputError, KeyError, ValueError, TypeError) as error:
        raise DamagedFileError(f"{path} has no proof of Δ in {norm} ({error}); --again proves it anew") from None
    for name in ("upper", "lower"):
        value, true = getattr(stated, name), getattr(proven, name)
        if not math.isclose(value, true, rel_tol=1e-9):
            raise DamagedFileError(
                f"{path} states {value:g} as the {name} bound of Δ in {norm}, but its proof gives {true:g}: the file "
                "was changed; --again proves it anew"
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
