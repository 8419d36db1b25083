"""Good settings per data set and method. Found by search on public benchmark data, which no privacy budget covers."""

__all__ = ["preset"]

import copy
from typing import Any

from securesgd.methods import method

# Expected batch, steps and so on; the reasoning is in docs/results.md as it is measured.
_DPSGD: dict[str, dict[str, Any]] = {
    "digits": {
        "network": "digits-cnn",
        "training": {"epsilon": 8.0, "delta": 1e-4, "batch_size": 256, "steps": 300, "learning_rate": 2.0},
    },
    "mnist": {
        "network": "tanh-cnn",
        "training": {"epsilon": 3.0, "delta": 1e-5, "batch_size": 512, "steps": 4688, "learning_rate": 0.5},
    },
    "fashion-mnist": {
        "network": "tanh-cnn",
        "training": {"epsilon": 3.0, "delta": 1e-5, "batch_size": 2048, "steps": 1172, "learning_rate": 4.0},
    },
    "cifar10": {
        "network": "cifar-cnn",
        "training": {"epsilon": 8.0, "delta": 1e-5, "batch_size": 1024, "steps": 1000, "learning_rate": 1.0},
    },
}
# With noise in the first layer: what differs. Larger batches; on few images several noisy copies of each.
_NOISY: dict[str, dict[str, Any]] = {
    "digits": {"training": {"batch_size": 512, "copies": 4}},
    "mnist": {
        "training": {"batch_size": 1024, "micro_batch": 512, "steps": 703, "learning_rate": 1.0, "copies": 1},
        "robustness": {"attack_size": 0.066},
    },
}
_NOISY["fashion-mnist"] = _NOISY["mnist"]
# The authors' settings, except where docs/adlm.md says what is reduced to end in minutes on one core.
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
_OWN = "digits"  # sizes of the user's own data are not known here: small and quick, to be changed


def preset(dataset: str, method_name: str) -> dict[str, Any]:
    """Return nested settings to start from; a data set without a preset of its own starts from small ones."""
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
        changes = copy.deepcopy(_NOISY.get(dataset, {}))
        values["training"] |= {"copies": 2} | changes.get("training", {})
        values["robustness"] = {"start": "prior", "place": "input"} | changes.get("robustness", {})
        if chosen.mechanism == "classic":
            values["robustness"]["robust_epsilon"] = 1.0
    if not chosen.private:
        values["training"] |= {"epsilon": None, "learning_rate": 0.05, "max_grad_norm": 1.0}
        values["training"]["steps"] = max(200, values["training"]["steps"] // 2)
        del values["training"]["epsilon"]
    return values
