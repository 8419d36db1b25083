"""Good settings per data set and method. Found by search on public benchmark data, which no privacy budget covers.

The user's own data have no row here: their settings are computed from the number of examples and the shape of an input.
"""

__all__ = ["fit_delta", "fit_sizes", "preset"]

import copy
import math
from typing import Any

from securesgd.methods import method

# Expected batch, steps and so on; the reasoning is in docs/results.md as it is measured.
_FEATURES: dict[str, Any] = {
    "batch_size": 8192, "steps": 600, "learning_rate": 12.0, "schedule": "linear", "ema_decay": 0.98,
    "kept_copies": True,
}  # fmt: skip
_DPSGD: dict[str, dict[str, Any]] = {
    "digits": {
        "network": "digits-cnn",
        "training": {"epsilon": 8.0, "delta": 1e-4, "batch_size": 256, "steps": 300, "learning_rate": 2.0},
    },
    "mnist": {"network": "scatter-linear", "training": {"epsilon": 3.0, "delta": 1e-5, **_FEATURES}},
    "fashion-mnist": {"network": "scatter-linear", "training": {"epsilon": 3.0, "delta": 1e-5, **_FEATURES}},
    # Colours have four times as many weights, whose noise is what limits: fewer steps.
    "cifar10": {
        "network": "scatter-linear",
        "training": {"epsilon": 8.0, "delta": 1e-5, **_FEATURES, "steps": 350},
    },
}
# Without privacy small steps do: the weights of a small network have no noise to drown in.
_PLAIN: dict[str, Any] = {"delta": 1e-5, "batch_size": 512, "steps": 4000, "momentum": 0.9}
# With noise: what differs, by the norm of the radii. Several noisy copies of each image are averaged before clipping;
# large batches, and an average over the last steps. Where the smallest noise decides (l2 and l1), r is uniform. Copies
# that are asked to agree lose a little accuracy and gain larger radii.
_UNIFORM: dict[str, Any] = {"redistribution": "uniform", "start": "uniform"}
_COPIES: dict[str, Any] = {
    "batch_size": 2048, "micro_batch": 128, "steps": 400, "learning_rate": 8.0, "schedule": "linear", "ema_decay": 0.98,
    "copies": 8, "kept_copies": False,
}  # fmt: skip
# Behind small noise, fixed wavelets are as good as learned filters, and their features can be kept; behind more, they
# pass too much of it on.
_KEPT_COPIES = _COPIES | {"batch_size": 8192, "micro_batch": 512, "steps": 600, "kept_copies": True}
_NOISY: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {
        "linf": {"training": {"batch_size": 512, "copies": 4}},
        "l2": {"training": {"batch_size": 512, "copies": 4}, "robustness": _UNIFORM | {"unit": 0.4}},
    },
    "mnist": {
        "linf": {
            "network": "tanh-cnn",
            "training": _COPIES | {"consistency": 2.0},
            "robustness": {"attack_size": 0.066},
        },
        "l2": {
            "network": "tanh-cnn",
            "training": _COPIES | {"consistency": 5.0},
            "robustness": _UNIFORM | {"unit": 0.5},
        },
    },
    "cifar10": {
        "linf": {  # with r learned, noise and features change in every step
            "network": "wavelet-linear",
            "training": _COPIES | {"copies": 2},
            "robustness": {"start": "uniform", "unit": 0.0045},
        },
        "l2": {
            "network": "wavelet-linear",
            "training": _KEPT_COPIES | {"copies": 4},
            "robustness": _UNIFORM | {"unit": 0.25},
        },
    },
}
_NOISY["fashion-mnist"] = {
    "linf": _NOISY["mnist"]["linf"],
    "l2": {
        "network": "wavelet-linear",
        "training": _KEPT_COPIES | {"consistency": 2.0},
        "robustness": _UNIFORM | {"unit": 0.25},
    },
}
# The authors' settings, except where docs/reference/adlm.md says what is reduced to end in minutes on one core.
_ADLM: dict[str, dict[str, Any]] = {
    "digits": {
        "network": "digits-cnn",
        "adlm": {"epsilon": 8.0},
        "training": {"delta": 1e-4, "batch_size": 500, "steps": 300, "optimizer": "adam", "learning_rate": 3e-3},
    },
    "mnist": {
        "network": "mnist-cnn",
        "adlm": {"epsilon": 0.3},
        "training": {"delta": 1e-5, "batch_size": 1800, "steps": 60, "optimizer": "adam", "learning_rate": 3e-4},
    },
    "cifar10": {
        "network": "digits-cnn",  # cifar-cnn takes half a minute per step at this batch size
        "adlm": {
            "epsilon": 2.5, "relevance_share": 0.1, "input_share": 0.6, "loss_share": 0.3, "hidden": 30, "crop": 20,
            "signed": True, "relevance_power": 1.0, "relevance_offset": 0.3,
        },
        "training": {
            "delta": 1e-5, "batch_size": 7200, "steps": 60, "optimizer": "adam", "learning_rate": 1e-3,
            "micro_batch": 1000,
        },
    },
}  # fmt: skip
_ADLM["fashion-mnist"] = _ADLM["mnist"]
# Interval bounds: large batches and a falling learning rate, since noise in the weights widens every box; larger limits
# than for logits alone, since gradients of the images that are hard to prove are long.
_INTERVAL: dict[str, dict[str, Any]] = {
    "digits": {
        "interval": {"train_radius": 0.06},
        "training": {"epsilon": 8.0, "delta": 1e-4, "batch_size": 512, "steps": 300, "learning_rate": 0.5},
    },
    "mnist": {
        "interval": {"train_radius": 0.12},
        "training": {"epsilon": 3.0, "delta": 1e-5, "batch_size": 4096, "steps": 400, "learning_rate": 2.0},
    },
    "fashion-mnist": {
        "interval": {"train_radius": 0.12},
        "training": {"epsilon": 8.0, "delta": 1e-5, "batch_size": 2048, "steps": 400, "learning_rate": 2.0},
    },
    "cifar10": {
        "interval": {"train_radius": 0.01, "clean_weight": 0.5, "initialisation": "own"},
        "training": {
            "epsilon": 8.0,
            "delta": 1e-5,
            "batch_size": 2048,
            "steps": 300,
            "learning_rate": 1.0,
            "max_grad_norm": 1.0,
        },
    },
}
_OWN = "digits"  # where sizes are not known: small and quick, to be changed
_STEPS = 400


def fit_sizes(examples: int) -> dict[str, int]:
    """Return a batch size and a number of steps for so many examples.

    The noise of a step is divided by the batch, so batches are large: 4·√n, at least 256 and at most a third of the
    data, where a larger part of it would only cost time.
    """
    return {"batch_size": max(1, min(examples // 3, max(256, round(4 * math.sqrt(examples))))), "steps": _STEPS}


def fit_delta(examples: int) -> float:
    """Return 1e-5, or for more than 66,000 examples the largest power of ten that is well below 1/examples."""
    return float(f"1e{min(-5, math.floor(-math.log10(1.5 * examples)))}")


def preset(
    dataset: str,
    method_name: str,
    *,
    norm: str = "linf",
    examples: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return nested settings to start from: those of the data set, method and norm, or else of its size and shape.

    `examples` is a *public* number: that of the training examples, or of the population they are a part of. A data set
    without a row here, and without these, starts from small and quick settings.
    """
    values = _preset(dataset, method_name, "linf" if norm == "linf" else "l2")
    if dataset in _DPSGD:
        return values
    if input_shape is not None:
        values["network"] = _fit_network(input_shape, values["network"])
        if len(input_shape) != 3 and "robustness" in values:
            values["robustness"]["start"] = "uniform"  # the prior is about height and width
    if examples is not None:
        values["training"] |= fit_sizes(examples) | {"delta": fit_delta(examples), "micro_batch": 512}
    return values


def _fit_network(input_shape: tuple[int, ...], chosen: str) -> str:
    """Return the network for inputs of this shape: mlp for the columns of a table, otherwise one for images."""
    if len(input_shape) != 3:
        return "mlp"
    return chosen if chosen == "interval-cnn" or min(input_shape[1:]) < 16 else "tanh-cnn"


def _preset(dataset: str, method_name: str, norm: str) -> dict[str, Any]:
    """Return the settings of a data set; of one without a row, those for small images."""
    chosen = method(method_name)
    if chosen.adlm:
        return copy.deepcopy(_ADLM.get(dataset, _ADLM[_OWN]))
    if chosen.interval:
        values = copy.deepcopy(_INTERVAL.get(dataset, _INTERVAL[_OWN]))
        values["network"] = "interval-cnn"
        values["training"] = {
            "momentum": 0.9, "max_grad_norm": 2.0, "schedule": "linear", "ema_decay": 0.98, "micro_batch": 256,
        } | values["training"]  # fmt: skip
        if not chosen.private:
            values["training"] |= {"learning_rate": 0.1, "max_grad_norm": 1.0}
            del values["training"]["epsilon"]
        return values
    values = copy.deepcopy(_DPSGD.get(dataset, _DPSGD[_OWN]))
    values["training"] |= {"momentum": 0.9, "max_grad_norm": 0.1}
    if chosen.noisy:
        changes = copy.deepcopy(_NOISY.get(dataset, _NOISY[_OWN])[norm])
        values["network"] = changes.get("network", values["network"])
        values["training"] |= changes["training"]
        values["robustness"] = {"start": "prior", "place": "input"} | changes.get("robustness", {})
        if chosen.mechanism == "classic":
            values["robustness"]["robust_epsilon"] = 1.0
    if not chosen.private:
        if not chosen.noisy and dataset in _DPSGD and dataset != _OWN:
            values = {"network": "tanh-cnn", "training": dict(_PLAIN)}
        values["training"] |= {"learning_rate": 0.05, "max_grad_norm": 1.0}
        values["training"]["steps"] = max(200, values["training"]["steps"] // 2)
        values["training"].pop("epsilon", None)
    return values
