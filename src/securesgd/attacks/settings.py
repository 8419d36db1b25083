"""The attacks by name: settings of one projected-gradient core, of a black-box search, of both, or a function.

==========  ===========================================================================================================
attack      what it is
==========  ===========================================================================================================
fgsm        one step of the whole budget along the gradient (Goodfellow et al. 2015)
ifgsm       T steps of budget/T (Kurakin et al. 2017)
mim         the same along a decaying sum of gradients (Dong et al. 2018)
madry       random starts, steps of 2.5·budget/T, restarts (Madry et al. 2018)
apgd-ce     step size that adapts itself, cross-entropy (Croce & Hein 2020)
apgd-dlr    the same with the difference-of-logits ratio
square      no gradients: random squares, kept if they help (Andriushchenko et al. 2020)
auto        apgd-ce, apgd-dlr, then square on what is still standing
==========  ===========================================================================================================

Two protocols. `sound`: gradients averaged over noise draws, true labels, the best point found is kept. `as-published`:
what the paper did: gradients of the network *without* its noise, labels = the model's own prediction, the last point,
one random start. It is there to compare with, and weaker against a noisy model.

An attack from outside is one more row, `ATTACKS["mine"] = {"function": function, "steps": 20}`, an import path
`package.module:function` or, in Python, a function: see `AttackFunction`. This module does not load torch.
"""

__all__ = [
    "ATTACKS",
    "ATTACK_NORMS",
    "PAPER_ATTACKS",
    "PROTOCOLS",
    "AttackFunction",
    "AttackSettings",
    "attack_grid",
    "attack_settings",
    "uses_gradients",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from securesgd.errors import InvalidInputError, nearest
from securesgd.runtime.import_path import is_import_path, load_function
from securesgd.validate import validate_count

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

AttackFunction = Callable[["nn.Module", "Tensor", "Tensor", "AttackSettings", "Generator"], "Tensor"]
"""An attack from outside: (model, images, labels, settings, generator) to attacked images of the same shape.

`images` have pixels in [0, 1]; `labels` are the classes to move away from, or towards if `settings.target` is given;
`settings` holds `budget`, `norm`, `steps` and the rest; `generator` is seeded by the cell. The model is in eval mode; a
noisy one draws fresh noise at every call. The harness clips the images that are returned to the budget and to [0, 1]
and measures them with votes of its own; one that is not finite is replaced by the clean image.
"""

ATTACK_NORMS = ("linf", "l2")
PROTOCOLS = ("sound", "as-published")
LABELS = ("true", "predicted")
TARGETS = ("least-likely", "runner-up")

_LOSSES = ("cross-entropy", "smoothed", "dlr", "margin")  # those of losses.py, without loading torch
_STEPS = {"cifar10": 3}
_PUBLISHED_STEPS = 10
# The settings of an attack that differ from the defaults of AttackSettings, and its `function` if it has its own.
ATTACKS: dict[str, dict[str, Any]] = {
    "fgsm": {"steps": 1},
    "ifgsm": {},
    "mim": {"momentum": 1.0},
    "madry": {"random_start": True, "restarts": 3, "step_share": 2.5},
    "apgd-ce": {"random_start": True, "adaptive": True, "steps": 50},
    "apgd-dlr": {"random_start": True, "adaptive": True, "steps": 50, "loss": "dlr"},
    "square": {"steps": 500, "loss": "margin"},
    "auto": {"random_start": True, "adaptive": True, "steps": 50},
}
# The least and the most of each count: at least ten times what the literature uses, and finite.
_RANGES = {
    "steps": (1, 10**5), "restarts": (1, 1000), "queries": (1, 10**5), "rows": (1, 10**6), "eot": (0, 10**4),
    "seed": (0, 10**14),
}  # fmt: skip
BUILT_IN_ATTACKS = tuple(ATTACKS)
"""The attacks of this package; rows that are added to the table later are somebody else's."""
PAPER_ATTACKS = ("fgsm", "ifgsm", "mim", "madry")
"""The attacks of the paper; `all` stands for them."""
_PUBLISHED = {
    "eot": 0,
    "labels": "predicted",
    "early_stop": False,
    "keep_best": False,
    "restarts": 1,
    "step_share": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """One attack at one budget, complete. Everything but `rows` changes what is measured.

    `attack_settings` fills in what a name stands for. An import path is loaded there and only there, so that a path
    read from a run folder is never imported.
    Raises: InvalidInputError for an unknown name (nearest suggested), a budget that is not > 0, or a count below 1.
    """

    attack: str
    budget: float
    norm: str = "linf"
    protocol: str = "sound"
    steps: int = 10
    """Gradient steps; for `square`, queries."""
    step_share: float = 1.0
    """A step is step_share · budget / steps."""
    momentum: float = 0.0
    adaptive: bool = False
    random_start: bool = False
    restarts: int = 1
    eot: int = 20
    """Noise draws per gradient; 0 is the network without its noise."""
    loss: str = "cross-entropy"
    labels: str = "true"
    """Move away from the `true` label or from the model's own (`predicted`) class."""
    target: str | None = None
    """Untargeted if None; else `least-likely`, `runner-up` or a class number, as text."""
    queries: int = 500
    """Of the black-box part of `auto`."""
    early_stop: bool = True
    """An example that is wrong beyond the chance of the draws is not attacked further."""
    keep_best: bool = True
    """Keep the best point seen instead of the last."""
    seed: int = 0
    rows: int = 500
    """Images times draws per pass; only changes speed."""
    function: AttackFunction | None = field(default=None, repr=False, compare=False)
    """The attack itself, if it comes from outside; `attack` is its name."""

    def __post_init__(self) -> None:
        if self.function is None and self.attack not in ATTACKS:
            raise InvalidInputError(
                f"unknown attack {self.attack!r}: {nearest(str(self.attack), ATTACKS)}, or an import path like "
                "package.module:function"
            )
        if self.function is None and "function" in ATTACKS[self.attack]:
            object.__setattr__(self, "function", ATTACKS[self.attack]["function"])
        if self.function is not None and self.attack in BUILT_IN_ATTACKS:
            raise InvalidInputError(f"the attack {self.attack} is one of this package; give yours another name")
        for name, valid in (
            ("norm", ATTACK_NORMS), ("protocol", PROTOCOLS), ("loss", _loss_names(self.loss)), ("labels", LABELS),
        ):  # fmt: skip
            value = getattr(self, name)
            if value not in valid:
                raise InvalidInputError(f"unknown {name} {value!r}: {nearest(str(value), valid)}")
        if self.protocol == "as-published" and self.attack not in PAPER_ATTACKS:
            raise InvalidInputError(
                f"the paper has no attack {self.attack!r}; valid as published: {', '.join(PAPER_ATTACKS)}"
            )
        if self.target is not None and self.target not in TARGETS and not self.target.isdecimal():
            raise InvalidInputError(
                f"unknown target {self.target!r}: {nearest(self.target, TARGETS)}, or a class number"
            )
        if not isinstance(self.budget, int | float) or not (math.isfinite(self.budget) and self.budget > 0):
            raise InvalidInputError(f"budget must be finite and > 0, got {self.budget!r}")
        if not (math.isfinite(self.step_share) and self.step_share > 0):
            raise InvalidInputError(f"step_share must be finite and > 0, got {self.step_share!r}")
        if not (math.isfinite(self.momentum) and self.momentum >= 0):
            raise InvalidInputError(f"momentum must be finite and >= 0, got {self.momentum!r}")
        for name, (least, most) in _RANGES.items():
            validate_count(name, getattr(self, name), least, most)

    def require_target_below(self, classes: int) -> None:
        """Return if the attack does not aim at a class that a model of so many has not. Raises: InvalidInputError."""
        if self.target is not None and self.target.isdecimal() and int(self.target) >= classes:
            raise InvalidInputError(f"target class {self.target} does not exist; valid: 0 to {classes - 1}")

    @property
    def identity(self) -> dict[str, Any]:
        """What two attacks must share to be the same measurement: everything but the speed settings.

        An attack from outside is known by its name: other code under the same name is measured again with `again`.
        """
        return {
            setting.name: getattr(self, setting.name)
            for setting in fields(self)
            if setting.name not in ("rows", "function")
        }


def attack_settings(
    attack: str | AttackFunction, budget: float, *, protocol: str = "sound", **changes: Any
) -> AttackSettings:
    """Return the settings of an attack under a protocol, with `changes`; a change that is None is no change.

    `attack` is a name in `ATTACKS`, an import path `package.module:function`, which is imported here, or a function.
    `dataset` among the changes only chooses the paper's number of steps: 3 on cifar10, 10 elsewhere.
    `fgsm` takes one step whatever `steps` says.
    """
    name, function = _resolve(attack)
    dataset = changes.pop("dataset", None)
    values = dict(ATTACKS.get(name, {})) | ({} if function is None else {"function": function})
    if protocol == "as-published":
        values = values | _PUBLISHED
        values.setdefault("steps", _STEPS.get(str(dataset), _PUBLISHED_STEPS))
    values |= {setting: value for setting, value in changes.items() if value is not None}
    if name == "fgsm":
        values["steps"] = 1
    unknown = set(values) - {setting.name for setting in fields(AttackSettings)}
    if unknown:
        setting = min(unknown)
        valid = [known.name for known in fields(AttackSettings)]
        raise InvalidInputError(f"attack {name!r} has an unknown setting {setting!r}: {nearest(setting, valid)}")
    return AttackSettings(attack=name, budget=budget, protocol=protocol, **values)


def attack_grid(
    attacks: str | AttackFunction | Sequence[str | AttackFunction], budget: float | Sequence[float], **settings: Any
) -> list[AttackSettings]:
    """Return the settings of every attack at every budget, attack by attack.

    `attacks` is one or several of what `attack_settings` takes; a text may hold several, as "fgsm,auto", and `all`
    stands for the attacks of the paper. `settings` are those of `attack_settings`.
    Raises: InvalidInputError if there is no attack or no budget, or one is not valid.
    """
    given = list(attacks) if isinstance(attacks, Sequence) and not isinstance(attacks, str) else [attacks]
    words = [word for entry in given for word in (_split(entry) if isinstance(entry, str) else (entry,))]
    chosen = [attack for word in words for attack in (PAPER_ATTACKS if word == "all" else (word,))]
    budgets = list(budget) if isinstance(budget, Sequence) else [budget]
    if not chosen:
        raise InvalidInputError(f"no attack is given; {nearest('', ['all', *ATTACKS, 'package.module:function'])}")
    if not budgets:
        raise InvalidInputError("no budget is given; valid: a number > 0, or numbers like 0.05,0.1")
    return [attack_settings(attack, size, **settings) for attack in dict.fromkeys(chosen) for size in budgets]


def uses_gradients(attack: str) -> bool:
    """Return whether an attack is known to follow gradients only; of one from outside this is not known."""
    return attack in ATTACKS and "function" not in ATTACKS[attack] and attack not in ("square", "auto")


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _resolve(attack: str | AttackFunction) -> tuple[str, AttackFunction | None]:
    """Return the name of an attack and, if it is not in the table, its function."""
    if isinstance(attack, str):
        is_path = attack not in ATTACKS and is_import_path(attack)
        return attack, load_function(attack, "attack") if is_path else None
    name = getattr(attack, "__qualname__", "")
    if not callable(attack) or not name or name.endswith("<lambda>"):
        raise InvalidInputError(
            f"the attack {attack!r} has no name to record; valid: a name, an import path like package.module:function, "
            'a function with a name, or a row of ATTACKS such as ATTACKS["mine"] = {"function": attack}'
        )
    return f"{attack.__module__}:{name}", attack


def _loss_names(loss: str) -> Sequence[str]:
    """Return the names of the losses; torch is loaded only for one that is not built in."""
    if loss in _LOSSES:
        return _LOSSES
    from securesgd.attacks.losses import LOSSES

    return tuple(LOSSES)
