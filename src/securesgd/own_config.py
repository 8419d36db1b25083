"""The configuration that describes a run of the user's own module, and how two configurations differ."""

__all__ = ["difference_in_words", "own_config"]

from dataclasses import asdict, fields
from typing import Any

from torch import nn

from securesgd.config import IN_MEMORY, OWN_NETWORK, RobustnessSettings, RunConfig
from securesgd.data.load import LoadedData
from securesgd.errors import InvalidInputError, nearest
from securesgd.models.interval_network import IntervalNetwork
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.import_path import is_import_path
from securesgd.training.settings import TrainingSettings


def own_config(model: nn.Module, loaded: LoadedData | None, network: str | None, settings: dict[str, Any]) -> RunConfig:
    """Return the configuration that describes a run of a user's own module."""
    if network is not None and not is_import_path(network):
        raise InvalidInputError(f"network is {network!r}; valid: an import path like package.module:function, or None")
    tables: dict[str, dict[str, Any]] = {"training": {}, "robustness": {}, "top": {}}
    places = {field.name: "robustness" for field in fields(RobustnessSettings)}
    places |= {field.name: "training" for field in fields(TrainingSettings)} | dict.fromkeys(
        ("public_dataset", "public_steps"), "top"
    )
    for name, value in settings.items():
        if name not in places:
            raise InvalidInputError(f"unknown setting {name!r}: {nearest(name, places)}")
        if value is not None:
            tables[places[name]][name] = value
    private = bool(tables["training"].get("private", True))
    training, interval = TrainingSettings.from_dict(tables["training"]), None
    if isinstance(model, NoisyNetwork):
        if model.radius_per_std is None:
            raise InvalidInputError("radius_per_std is None; valid: NoisyNetwork(…, radius_per_std=0.05), say")
        redistributed = model.redistribution != "uniform"
        method = ("secure-sgd" if redistributed else "secure-sgd-agm") if private else "hgm-pixeldp"
        tables["robustness"] |= {
            "norm": model.norm, "place": model.place, "unit": model.radius_per_std, "start": model.start,
            "redistribution": model.redistribution,
        }  # fmt: skip
        if model.learning is not None:
            learning = model.learning
            if learning.steps != training.steps:
                raise InvalidInputError(
                    f"the model's learning has {learning.steps} steps, the training {training.steps}; valid: the same"
                )
            tables["robustness"] |= {
                "scale_grid": learning.grid, "scale_rate": learning.rate, "scale_share": learning.share
            }  # fmt: skip
    elif isinstance(model, IntervalNetwork):
        method, interval = "dp-ibp" if private else "ibp", model.settings
    else:
        method = "dpsgd" if private else "sgd"
    source = {} if loaded is None else {"seed": loaded.source["seed"], "holdout": loaded.source["sizes"]["holdout"]}
    return RunConfig(
        dataset=IN_MEMORY if loaded is None else loaded.name,
        method=method,
        network=network or OWN_NETWORK,
        robustness=RobustnessSettings(**tables["robustness"]),
        interval=interval,
        data=None if loaded is None else loaded.settings,
        training=training,
        **source,
        **tables["top"],
    )


def difference_in_words(saved: RunConfig, given: RunConfig) -> str:
    """Return what differs between two configurations, as it is saved."""
    before, now = (_flat(asdict(config)) for config in (saved, given))
    return ", ".join(f"{name} = {value}" for name, value in before.items() if now.get(name) != value)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return nested settings as one table."""
    tables = [_flat(value) for value in values.values() if isinstance(value, dict)]
    return {name: value for table in (values, *tables) for name, value in table.items() if not isinstance(value, dict)}
