"""The configuration of a run: frozen, validated, and written to `config.toml` so that it can be run again.

Presets come first, then a file, then flags: each overrides the one before. An unknown key raises with the nearest name.
"""

__all__ = [
    "IN_MEMORY",
    "OWN_NETWORK",
    "RobustnessSettings",
    "RunConfig",
    "resumed_config",
    "run_config",
    "saved_config",
]

import dataclasses
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import tomli_w

from securesgd.baselines.adlm.budget import AdlmSettings
from securesgd.data.settings import DataSettings
from securesgd.errors import DamagedFileError, InvalidInputError, nearest
from securesgd.methods import METHODS, method
from securesgd.models.interval_network import IntervalSettings
from securesgd.models.noise_layer import ScaleLearning
from securesgd.models.noisy import Place
from securesgd.models.redistribution import WAYS
from securesgd.presets import preset
from securesgd.runtime.import_path import is_import_path
from securesgd.runtime.run_folder import CONFIG, IN_MEMORY, OWN_NETWORK
from securesgd.runtime.storage import read_toml
from securesgd.theory import NORMS, noise_multiplier
from securesgd.theory.redistribution import Direction
from securesgd.training.settings import MAX_STEPS, TrainingSettings
from securesgd.validate import validate_count, validate_positive, validate_types


@dataclass(frozen=True, kw_only=True)
class RobustnessSettings:
    """The noise of the network. Its size: `unit`, or (robust_epsilon, robust_delta, attack_size) as in the paper.

    `unit` is the input radius that one standard deviation of the (whitened) noise is worth; the paper's construction
    is unit = c(robust_epsilon, robust_delta)·attack_size.
    """

    norm: str = "linf"
    """Of the radii: linf, l2 or l1."""
    place: str = "input"
    """Where the noise is: input or first-layer."""
    unit: float | None = None
    """Input radius that one standard deviation of the noise is worth; instead of the next three."""
    robust_epsilon: float = 4.0
    """The paper's ε_r."""
    robust_delta: float = 0.05
    """The paper's δ_r."""
    attack_size: float = 0.1
    """The paper's size of the attack that the noise is for."""
    redistribution: str | None = None
    """A name of `models.redistribution.WAYS`, or an import path; None: the method's own."""
    start: str = "uniform"
    """Where `learned` starts from: a way that reads no data."""
    scale_grid: int | None = None
    """Blocks on each side of the first grid on which `learned` moves log-scales, finer grids later; None: a plain
    factor for each unit."""
    scale_rate: float | None = None
    """Learning rate of these log-scales, in learning rates of the weights; None: 1."""
    scale_share: float | None = None
    """Factor of their gradient before all gradients are clipped together; None: 1."""
    direction: str = "vulnerable"
    """Of r from gradients: where more noise goes."""
    beta: float = 1.0
    """Of r from gradients: how unequal it is."""
    per: str | None = None
    """unit or channel; None: channel for a convolution, else unit."""
    r_noise_multiplier: float = 20.0
    """Noise of the release of a `private` r."""
    r_step: float = 0.1
    """When r is computed from gradients: after this share of the steps."""

    def __post_init__(self) -> None:
        validate_types(self)
        choices = {
            "norm": NORMS, "place": get_args(Place), "direction": get_args(Direction), "per": ("unit", "channel"),
            "redistribution": WAYS, "start": [name for name, way in WAYS.items() if way.first is not None],
        }  # fmt: skip
        for name, valid in choices.items():
            value = getattr(self, name)
            if (value is None and name in ("redistribution", "per")) or value in valid:
                continue
            if not (name in ("redistribution", "start") and is_import_path(value)):  # imported when it is used
                raise InvalidInputError(f"unknown {name} {value!r}: {nearest(str(value), valid)}")
        for name in ("robust_epsilon", "attack_size", "r_noise_multiplier", "beta"):
            validate_positive(name, getattr(self, name))
        if self.unit is not None:
            validate_positive("unit", self.unit)
        if self.scale_grid is None and (self.scale_rate, self.scale_share) != (None, None):
            raise InvalidInputError("scale_rate and scale_share are for log-scales; valid: with scale_grid")
        self.scale_learning(steps=1)
        if not 0 < self.robust_delta < 1:
            raise InvalidInputError(f"robust_delta is {self.robust_delta!r}; valid: 0 < robust_delta < 1")
        if not 0 <= self.r_step < 1:
            raise InvalidInputError(f"r_step is {self.r_step!r}; valid: a share of the steps, 0 <= r_step < 1")

    def scale_learning(self, steps: int) -> ScaleLearning | None:
        """Return how a learned r moves in a training of so many steps; None for plain factors.

        Raises: InvalidInputError for a grid, rate or share that is not valid.
        """
        if self.scale_grid is None:
            return None
        validate_count("scale_grid", self.scale_grid, at_least=1)
        rate, share = (1.0 if value is None else value for value in (self.scale_rate, self.scale_share))
        validate_positive("scale_rate", rate)
        validate_positive("scale_share", share)
        return ScaleLearning(grid=self.scale_grid, steps=steps, rate=rate, share=share)

    def radius_per_std(self, mechanism: Any) -> float:
        """Return the input radius that one standard deviation of noise is worth: 1/Δ of the whitened layer."""
        if self.unit is not None:
            return self.unit
        return float(noise_multiplier(self.robust_epsilon, self.robust_delta, mechanism)) * self.attack_size


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything needed to run again."""

    dataset: str
    """A name, a file, a folder of images or package.module:function."""
    method: str
    """One of the methods of securesgd train --help."""
    network: str
    """A built-in network, or package.module:function."""
    seed: int = 0
    """Of the initial weights, the split and a random r. Noise and sampling have a secret of their own."""
    holdout: int = 0
    """Training examples that are set apart to watch the accuracy; epsilon does not cover them."""
    public_dataset: str | None = None
    """A data set that you declare public, for redistribution = "public" or `public_steps`; images are resized."""
    public_steps: int = 0
    """Steps of ordinary training on `public_dataset`, from which the first weights come, at no cost in privacy."""
    robustness: RobustnessSettings = field(default_factory=RobustnessSettings)
    """The noise of the network."""
    adlm: AdlmSettings | None = None
    """For the method adlm, and no other."""
    interval: IntervalSettings | None = None
    """For the methods ibp and dp-ibp, and no other."""
    data: DataSettings | None = None
    """How the user's own table or folder of images is read."""
    training: TrainingSettings
    """Of DP-SGD."""

    def __post_init__(self) -> None:
        validate_types(self)
        chosen = method(self.method)
        validate_count("holdout", self.holdout, at_least=0)
        validate_count("seed", self.seed, at_least=0)
        if chosen.private != self.training.private:
            stated = str(self.training.private).lower()
            raise InvalidInputError(
                f"training.private is {stated}; valid for the method {self.method}: {str(chosen.private).lower()}"
            )
        if self.training.consistency and not chosen.noisy:
            noisy = ", ".join(name for name, each in METHODS.items() if each.noisy)
            raise InvalidInputError(
                f"consistency is {self.training.consistency:g}, but the method {self.method} has no noisy copies; "
                f"valid: consistency = 0, or one of {noisy}"
            )
        if chosen.adlm != (self.adlm is not None):
            raise InvalidInputError(f"the table [adlm] is for the method adlm and needed by it, got {self.method}")
        if chosen.interval != (self.interval is not None):
            raise InvalidInputError(
                f"the table [interval] is for the methods ibp and dp-ibp and needed by them, got {self.method}"
            )
        if chosen.noisy:
            self.robustness.radius_per_std(chosen.mechanism)  # classic refuses robust_epsilon > 1 here, not later
        if self.way == "public" and self.public_dataset is None:
            raise InvalidInputError("redistribution 'public' needs public_dataset, a data set you declare public")
        self._validate_public_steps()
        if self.robustness.scale_grid is not None and self.way != "learned":
            raise InvalidInputError(f"scale_grid is for redistribution = 'learned', got {self.way!r}")
        if self.way == "private" and not chosen.private:
            raise InvalidInputError(f"redistribution 'private' needs a private method, got {self.method}")

    def _validate_public_steps(self) -> None:
        """Raise InvalidInputError if `public_dataset` and `public_steps` do not fit each other, the method or data."""
        validate_count("public_steps", self.public_steps, at_least=0, at_most=MAX_STEPS)
        if self.public_dataset is not None and self.way != "public" and not self.public_steps:
            raise InvalidInputError(
                f"public_dataset is {self.public_dataset}, but nothing reads it; valid: with redistribution = 'public' "
                "or with public_steps"
            )
        if self.public_dataset == self.dataset:
            raise InvalidInputError(f"public_dataset is {self.dataset}, the private data; valid: another data set")
        if not self.public_steps:
            return
        if self.public_dataset is None:
            raise InvalidInputError(
                f"public_steps is {self.public_steps}, but there is no public_dataset; valid: a data set you declare "
                "public"
            )
        if method(self.method).adlm:
            raise InvalidInputError("public_steps are not for the method adlm; valid: public_steps = 0")

    @property
    def way(self) -> str:
        """How r is obtained."""
        return self.robustness.redistribution or method(self.method).redistribution

    @property
    def import_paths(self) -> dict[str, str]:
        """The import paths among the settings, by name. Training follows them: importing is running code."""
        named = {"dataset": self.dataset, "network": self.network, "redistribution": self.robustness.redistribution,
                 "start": self.robustness.start, "public_dataset": self.public_dataset}  # fmt: skip
        return {name: path for name, path in named.items() if path is not None and is_import_path(path)}

    def to_toml(self) -> str:
        """Return the text of `config.toml`. The seed of the noise, if one is fixed, is in it; a secret never is."""
        return tomli_w.dumps(_without_none(asdict(self)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunConfig":
        """Return the configuration of nested dictionaries."""
        for name in ("robustness", *_OPTIONAL, "training"):
            if not isinstance(values.get(name, {}), dict):
                raise InvalidInputError(f"{name} is {values[name]!r}; valid: a table of settings")
        top, robust = _known(values, cls, "run"), dict(values.get("robustness", {}))
        top["robustness"] = RobustnessSettings(**_known(robust, RobustnessSettings, "robustness"))
        for name, settings in _OPTIONAL.items():
            if name in values:
                top[name] = settings(**_known(dict(values[name]), settings, name))
        top["training"] = TrainingSettings.from_dict(dict(values.get("training", {})))
        missing = [name for name in ("dataset", "method", "network") if name not in top]
        if missing:
            raise InvalidInputError(f"the configuration needs {', '.join(missing)}")
        return cls(**top)


_OPTIONAL: dict[str, Any] = {"adlm": AdlmSettings, "interval": IntervalSettings, "data": DataSettings}
"""Tables that a configuration has only if they are needed."""


def run_config(
    dataset: str | None = None,
    method_name: str | None = None,
    file: Path | None = None,
    *,
    fit_to: tuple[int, tuple[int, ...]] | None = None,
    **changes: Any,
) -> RunConfig:
    """Return the configuration of a data set and method: preset, then `file`, then `changes` (names dotted or bare).

    `fit_to` is the number of training examples and the shape of an input, for data without a preset of their own. If
    that number is not public (a sampling rate or a population is given), nothing here depends on it.
    """
    given = _read(file) if file else {}
    dataset = dataset or given.get("dataset")
    method_name = method_name or given.get("method")
    if not dataset or not method_name:
        raise InvalidInputError(
            "a data set and a method are needed: --dataset and --method, or a config file with both"
        )
    if not isinstance(dataset, str):
        raise InvalidInputError(f"dataset is {dataset!r}; valid: a name or a path, as text")
    private = method(method_name).private
    changes = {_setting_path(name, method_name): value for name, value in changes.items() if value is not None}
    examples, shape = fit_to or (None, None)
    for name in ("sampling_rate", "population"):
        public = changes.get(f"training.{name}", _table(given, "training").get(name))
        if public is not None:
            examples = public if name == "population" and isinstance(public, int) and public > 0 else None
    norm = changes.get("robustness.norm", _table(given, "robustness").get("norm", "linf"))
    values = preset(dataset, method_name, norm=str(norm), examples=examples, input_shape=shape)
    if changes.get("network", given.get("network", values["network"])) != values["network"]:
        values["training"].pop("kept_copies", None)  # of the preset's network, which has a fixed front end
    for name in TrainingSettings.absent_from(_table(given, "training")):
        values["training"].pop(name, None)  # a run of an earlier version did not have the preset's
    if changes.get("training.copies", _table(given, "training").get("copies")) == 1:
        values["training"].pop("consistency", None)  # the preset's, of several copies
    named = {*_table(given, "robustness"), *(name.removeprefix("robustness.") for name in changes)}
    if named & {"robust_epsilon", "robust_delta", "attack_size"}:
        values.get("robustness", {}).pop("unit", None)  # the preset's noise gives way to the one that is described
    for source in (given, {"dataset": dataset, "method": method_name}):
        for name, value in source.items():
            if isinstance(value, dict):
                values.setdefault(name, {}).update(value)
            else:
                values[name] = value
    for name, value in changes.items():
        table, _, key = name.rpartition(".")
        (values.setdefault(table, {}) if table else values)[key] = value
    training = values.setdefault("training", {})
    if not isinstance(training, dict):
        raise InvalidInputError(f"training is {training!r}; valid: a table of settings, as in --set training.steps=100")
    if training.setdefault("private", private) is not private:
        kind = "private" if private else "not private"
        raise InvalidInputError(f"method {method_name} is {kind}, got private = {training['private']!r}; leave it out")
    epsilon_given = "training.epsilon" in changes or "epsilon" in _table(given, "training")
    if not epsilon_given and (not private or "noise_multiplier" in training):
        training.pop("epsilon", None)  # the preset's target gives way to the noise that was epsilon_given for
    return RunConfig.from_dict(values)


def saved_config(folder: str | Path) -> RunConfig:
    """Return the configuration of a run folder. Raises: DamagedFileError if it has none."""
    path = Path(folder) / CONFIG
    if not path.exists():
        raise DamagedFileError(f"{folder} is not a run folder: it has no readable config.toml")
    try:
        return RunConfig.from_dict(read_toml(path))
    except InvalidInputError as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


def resumed_config(folder: str | Path, given: dict[str, Any]) -> RunConfig:
    """Return the configuration of a run to resume, which takes no other setting.

    Functions from outside that the run uses must be named again: a path in a folder is not imported by itself.
    Raises: InvalidInputError if something else is given, or such a path is not.
    """
    config = saved_config(folder)
    needed = config.import_paths
    for name, value in given.items():
        if needed.get(name) != value:
            raise InvalidInputError(f"--resume uses the run's own configuration; leave out {name} = {value}")
    for name, path in needed.items():
        if name not in given:
            option = f"--{name} {path}" if name in ("dataset", "network") else f"--set {name}={path}"
            raise InvalidInputError(f"the run uses {path}, which is code; to resume it say so again: {option}")
    return config


def _setting_path(name: str, method_name: str) -> str:
    """Return `name` with its table: a bare name is looked for everywhere, first of all in the method's own table."""
    chosen = method(method_name)
    places = {f.name: "" for f in fields(RunConfig)}
    places |= {f.name: "robustness." for f in fields(RobustnessSettings)}
    places |= {f.name: "training." for f in fields(TrainingSettings)}
    places |= {f.name: "data." for f in fields(DataSettings)}
    places |= {f.name: "adlm." for f in fields(AdlmSettings)} if chosen.adlm else {}
    places |= {f.name: "interval." for f in fields(IntervalSettings)} if chosen.interval else {}
    table, _, key = name.rpartition(".")
    if key not in places or (table and f"{table}." != places[key]):
        raise InvalidInputError(f"unknown setting {name!r}: {nearest(key, places)}")
    return places[key] + key


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table of nested settings, empty if it is not there or not one."""
    table = values.get(name)
    return table if isinstance(table, dict) else {}


def _known(values: dict[str, Any], cls: type, what: str) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(cls)]
    for name in values:
        if name not in names:
            raise InvalidInputError(f"unknown {what} setting {name!r}: {nearest(name, names)}")
    return dict(values)


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_toml(file)
    except DamagedFileError as error:
        raise InvalidInputError(f"--config: {error}") from None


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """Return nested settings without those that are not set, which TOML has no word for; tables come last."""
    given = {name: value for name, value in values.items() if value is not None}
    tables = {name: _without_none(value) for name, value in given.items() if isinstance(value, dict)}
    return {name: value for name, value in given.items() if name not in tables} | tables
