"""The settings of a certification, and the certificates that it returns."""

__all__ = ["BOUNDS", "FRESH", "NO_NOISE", "OTHERS", "SCORES", "SEEDED", "Certificates", "CertifySettings"]

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import nn

from securesgd.certificates.box import SMALLEST_SHARE, require_box
from securesgd.certificates.rules import FAMILIES, INTERVAL, MAX_DRAWS, SMOOTHING, certificate_rules
from securesgd.certificates.sensitivity import model_sensitivity, published_whitened_sensitivity
from securesgd.errors import InvalidInputError, nearest
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import Scores
from securesgd.theory import NORMS, Sensitivity
from securesgd.theory.certificates import radii_by_rule
from securesgd.validate import Array, validate_count

Others = Literal["auto", "rest", "each"]
OTHERS: tuple[str, ...] = get_args(Others)
SCORES: tuple[str, ...] = get_args(Scores)
BOUNDS = ("best", "interval")
FRESH, SEEDED = "fresh; for any input", "seeded; for a test set fixed beforehand"
NO_NOISE = "none; for any input"


@dataclass(frozen=True, kw_only=True)
class CertifySettings:
    """What to prove, how much to draw, how sure to be, and when to stop.

    By default every example gets all `draws`. With `radius` drawing stops as soon as it is known whether that radius is
    proven; with `tolerance`, as soon as the radius is known to within that. Both are in the units of the input.

    Interval certificates take norm (linf), radius, tolerance (1e-4 if None), input_range, bounds and box. They draw
    nothing and cannot fail, so draws, failure_prob and the like mean nothing for them.
    """

    family: str | None = None
    """`smoothing` by votes of a noisy network, `interval` by bounds of a network without noise; None: by the model. For
    a noisy network, `interval` is about the network without its noise."""
    norm: str = "linf"
    draws: int = 10_000
    """The most draws counted per example, besides the selection draws."""
    selection_draws: int = 100
    """Draws that choose the class, and where to place the bet of the confidence sequence. They are not counted."""
    failure_prob: float = 0.001
    """Bound on the probability that anything said about one example is wrong."""
    seed: int | None = None
    """None: fresh noise that nobody can know. A seed repeats the noise, and is for inputs fixed beforehand: for one
    chosen by somebody who knows the seed, votes under it prove nothing."""
    radius: float | None = None
    tolerance: float | None = None
    scores: str = "votes"
    """`votes`: a draw counts for the class that wins it. `soft`: for every class by its softmax probability."""
    others: str = "auto"
    """How the other classes are bounded: together by 1 − p (`rest`, as Cohen et al. 2019), each by its own count
    (`each`), or whichever the selection draws say gives the larger radius (`auto`)."""
    input_range: tuple[float, float] | None = (0.0, 1.0)
    """Inputs outside are refused: radii are in the units of the input, and 0..255 is a common mistake. None: any. An
    interval certificate speaks of changes that stay inside."""
    bounds: str = "best"
    """Of intervals: the better of boxes and linear bounds (`best`), or boxes alone (`interval`), which are faster."""
    box: tuple[str, ...] | None = None
    """Of intervals, for tables: how far each column may be off, as "5", "10%" of its value, or "0". A radius is then a
    share of this box: 1 is all of it."""
    box_in_units: tuple[str, ...] | None = None
    """The box as the user gave it, in the units of a table's columns; `box` is then what it is in the features."""

    def with_changes(self, **changes: Any) -> "CertifySettings":
        """Return these settings with some of them changed. Raises: InvalidInputError for a name that is not one."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise InvalidInputError(f"unknown setting {name!r} of certificates: {nearest(name, known)}")
        return replace(self, **changes)

    def __post_init__(self) -> None:
        if self.family is not None and self.family not in FAMILIES:
            raise InvalidInputError(f"unknown family {self.family!r}: {nearest(str(self.family), FAMILIES)}")
        for name, valid in (("norm", NORMS), ("scores", SCORES), ("others", OTHERS), ("bounds", BOUNDS)):
            value = getattr(self, name)
            if value not in valid:
                raise InvalidInputError(f"unknown {name} {value!r}: {nearest(str(value), valid)}")
        validate_count("draws", self.draws, at_least=1, at_most=MAX_DRAWS)
        validate_count("selection_draws", self.selection_draws, at_least=1, at_most=MAX_DRAWS)
        if self.seed is not None:
            validate_count("seed", self.seed, at_least=0)
        if not (isinstance(self.failure_prob, float) and 0 < self.failure_prob < 1):
            raise InvalidInputError(f"failure_prob is {self.failure_prob!r}; valid: between 0 and 1")
        if self.radius is not None and not (math.isfinite(self.radius) and self.radius >= 0):
            raise InvalidInputError(f"radius is {self.radius!r}; valid: finite and >= 0")
        if self.tolerance is not None and not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise InvalidInputError(f"tolerance is {self.tolerance!r}; valid: finite and > 0")
        if self.radius is not None and self.tolerance is not None:
            raise InvalidInputError(
                f"radius is {self.radius:g} and tolerance {self.tolerance:g}; give one of them, not both"
            )
        if self.family == INTERVAL and self.norm != "linf":
            raise InvalidInputError(f"norm is {self.norm!r}; valid for interval certificates: linf")
        if self.box is not None:
            if self.family == SMOOTHING:
                raise InvalidInputError("a box is of interval certificates; give family interval, or no box")
            require_box(self.box)
        if self.box_in_units is not None:
            require_box(self.box_in_units)
            if self.box is None:
                raise InvalidInputError("box_in_units is given without box; valid: both, as run.certify(box=…) has it")
            if self.radius is not None and 0 < self.radius < SMALLEST_SHARE:
                raise InvalidInputError(
                    f"radius is {self.radius:g}; valid for a box in the units of columns: a share from "
                    f"{SMALLEST_SHARE:g} on, since values are rounded when they are scaled"
                )

    def for_model(self, model: nn.Module) -> "CertifySettings":
        """Return these settings with a family: the given one, else smoothing for a noisy network, interval for others.

        Raises: InvalidInputError if the settings do not fit the family.
        """
        if self.family is not None:
            return self
        return replace(self, family=SMOOTHING if isinstance(model, NoisyNetwork) else INTERVAL)

    @property
    def row_norm(self) -> str:
        """The column `norm` of the rows: what a radius measures, the norm or shares of a `box`."""
        return self.norm if self.box is None else "box"

    @property
    def adaptive(self) -> bool:
        """Whether drawing may stop early."""
        return self.radius is not None or self.tolerance is not None

    @property
    def noise(self) -> str:
        """Where the draws come from, and for which inputs they are evidence."""
        return NO_NOISE if self.family == INTERVAL else FRESH if self.seed is None else SEEDED

    def json(self) -> dict[str, Any]:
        """Return the settings that mean something for the family, as JSON holds them."""
        values = asdict(self)
        values["input_range"] = None if self.input_range is None else list(self.input_range)
        values["box"] = None if self.box is None else list(self.box)
        if self.family == INTERVAL:
            in_units = {} if self.box_in_units is None else {"box_in_units": list(self.box_in_units)}
            return {name: values[name] for name in _OF_INTERVALS} | in_units
        return {name: value for name, value in values.items() if name not in _ONLY_OF_INTERVALS}


_ONLY_OF_INTERVALS = (
    "family",
    "bounds",
    "box",
    "box_in_units",
)  # smoothing is not named, so that records of earlier versions agree
_OF_INTERVALS = ("family", "norm", "radius", "tolerance", "input_range", "bounds", "box")


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificates:
    """An entry per example, in the order of the inputs.

    Guarantee: for each example, with probability >= 1 − settings.failure_prob over the draws: if it is not abstained,
    `prediction` is the class of the smoothed classifier, and no change of the input of size below `radius` (in
    settings.norm; by a rule whose row in `CERTIFICATE_RULES` says that it is a guarantee) makes it another one.
    Interval certificates (family `interval`) hold for certain: `prediction` is the class of the network without noise,
    and no change of at most `radius` inside settings.input_range makes it another one, in the precision of the weights
    and in whatever order sums are computed. They draw nothing and never abstain: draws are 0, p_lower 1, q_upper 0,
    rounding 0 (it is inside the bounds), and there is no sensitivity.
    """

    settings: CertifySettings
    sensitivity: Sensitivity | None = None
    published_sensitivity: float | None = None
    """The paper's own Δ, which only the rule `as-published` uses."""
    index: NDArray[np.int64]
    prediction: NDArray[np.int64]
    """The class the selection draws chose; without meaning where abstained."""
    abstained: NDArray[np.bool_]
    """The draws do not prove that the prediction is the smoothed classifier's class."""
    answer: NDArray[Any]
    """To "is a radius of at least settings.radius proven?": yes; no, and by no number of draws (with the way the other
    classes are bounded); or open. Of intervals: yes, or no, these bounds do not prove it. Empty without
    settings.radius."""
    draws: NDArray[np.int64]
    """Counted draws, besides settings.selection_draws."""
    votes: Array
    """[examples, classes]: what each class got of the counted draws; no classes for intervals."""
    p_lower: Array
    q_upper: Array
    rounding: Array
    """What the rounding of the layer may add to a move of it, in standard deviations; taken off before the radius."""
    input_path: str = ""
    """`traced` if the whole path of the input to the noisy layer was seen, else why it was only compared at inputs."""
    radius: dict[str, Array]
    """By rule; 0 where nothing is proven. Rules that prove anything are those whose row says `is_guarantee`, and those
    of intervals: `interval` by boxes, `linear` by linear bounds, `tight` the larger one."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def family(self) -> str:
        """`smoothing` or `interval`."""
        return self.settings.family or SMOOTHING

    @property
    def noise(self) -> str:
        """Where the draws came from, and for which inputs they are evidence."""
        return self.settings.noise

    def in_norm(self, norm: str, model: NoisyNetwork, sensitivity: Sensitivity | None = None) -> "Certificates":
        """Return the same certificates with radii in another norm: the votes are the same, only Δ differs.

        Raises: InvalidInputError for interval certificates, which have no votes.
        """
        if self.family == INTERVAL:
            raise InvalidInputError(f"interval certificates are in linf, not in {norm}")
        settings = replace(self.settings, norm=norm, radius=None, tolerance=None)
        bound = model_sensitivity(model, norm, sensitivity)
        published = published_whitened_sensitivity(model, bound)
        rules = certificate_rules(self.radius)
        return replace(
            self,
            settings=settings,
            sensitivity=bound,
            published_sensitivity=published,
            answer=np.full(len(self), ""),
            radius=radii_by_rule(self.p_lower, self.q_upper, bound.upper, published, self.rounding, rules),
        )
