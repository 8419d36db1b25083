"""The configuration of a run on any data: presets of named data sets, or fitted to the user's own."""

__all__ = ["FittedConfig", "fitted_config"]

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesgd.config import RunConfig, run_config
from securesgd.data.catalog import CATALOG
from securesgd.data.load import LoadedData, load_data


@dataclass(frozen=True, kw_only=True)
class FittedConfig:
    """A configuration, and the data if they were read to fit it."""

    config: RunConfig
    loaded: LoadedData | None
    """None for a named data set, which is read when it is needed."""
    examples: int
    """Training examples."""
    input_shape: tuple[int, ...]
    classes: int


def fitted_config(
    dataset: str | None = None, method_name: str | None = None, file: Path | None = None, **changes: Any
) -> FittedConfig:
    """Return the configuration as `run_config` does, with batch size, steps, delta and network that fit the data.

    A named data set has settings of its own, and is not read; the user's own data are read for their number and shape.
    Raises: InvalidInputError for settings (before anything is read) or data that are not valid.
    """
    config = run_config(dataset, method_name, file, **changes)
    named = CATALOG.get(config.dataset)
    if named is not None:
        return FittedConfig(
            config=config,
            loaded=None,
            examples=named.train_size - config.holdout,
            input_shape=named.input_shape,
            classes=named.classes,
        )
    loaded = load_data(config.dataset, holdout=config.holdout, seed=config.seed, settings=config.data)
    examples, shape = len(loaded.train_inputs), loaded.input_shape
    config = run_config(dataset, method_name, file, fit_to=(examples, shape), **changes)
    return FittedConfig(config=config, loaded=loaded, examples=examples, input_shape=shape, classes=loaded.classes)
