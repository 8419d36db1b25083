"""The attacks by name: settings of one projected-gradient core, of a black-box search, or of both together.

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
"""

__all__ = ["ATTACKS", "ATTACK_NORMS", "PAPER_ATTACKS", "PROTOCOLS", "AttackSettings", "attack_settings"]

import math
from dataclasses import asdict, dataclass
from typing import Any

from securesgd.attacks.losses import LOSSES
from securesgd.errors import InvalidInputError, nearest
from securesgd.validate import validate_count

ATTACK_NORMS = ("linf", "l2")
PROTOCOLS = ("sound", "as-published")
LABELS = ("true", "predicted")
TARGETS = ("least-likely", "runner-up")

_STEPS = {"cifar10": 3}
_PUBLISHED_STEPS = 10
# What a name stands for, where it differs from the defaults of AttackSettings.
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
# The least and the most of each count: ten times and more what the literature uses, and what still ends.
_COUNTS = {
    "steps": (1, 10**5), "restarts": (1, 1000), "queries": (1, 10**5), "rows": (1, 10**6), "eot": (0, 10**4),
    "seed": (0, 10**14),
}  # fmt: skip
PAPER_ATTACKS = ("fgsm", "ifgsm", "mim", "madry")
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

    def __post_init__(self) -> None:
        for name, valid in (
            ("attack", ATTACKS), ("norm", ATTACK_NORMS), ("protocol", PROTOCOLS), ("loss", LOSSES), ("labels", LABELS),
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
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise InvalidInputError(f"budget must be finite and > 0, got {self.budget!r}")
        if not (math.isfinite(self.step_share) and self.step_share > 0):
            raise InvalidInputError(f"step_share must be finite and > 0, got {self.step_share!r}")
        if not (math.isfinite(self.momentum) and self.momentum >= 0):
            raise InvalidInputError(f"momentum must be finite and >= 0, got {self.momentum!r}")
        for name, (least, most) in _COUNTS.items():
            validate_count(name, getattr(self, name), least, most)

    @property
    def identity(self) -> dict[str, Any]:
        """What two attacks must share to be the same measurement: everything but the speed settings."""
        values = asdict(self)
        del values["rows"]
        return values


def attack_settings(attack: str, budget: float, *, protocol: str = "sound", **changes: Any) -> AttackSettings:
    """Return the settings a name stands for under a protocol, with `changes`; a change that is None is no change.

    `dataset` among the changes only chooses the paper's number of steps: 3 on cifar10, 10 elsewhere.
    `fgsm` takes one step whatever `steps` says.
    """
    dataset = changes.pop("dataset", None)
    values = dict(ATTACKS.get(attack, {}))
    if protocol == "as-published":
        values = values | _PUBLISHED
        values.setdefault("steps", _STEPS.get(str(dataset), _PUBLISHED_STEPS))
    values |= {name: value for name, value in changes.items() if value is not None}
    if attack == "fgsm":
        values["steps"] = 1
    return AttackSettings(attack=attack, budget=budget, protocol=protocol, **values)
