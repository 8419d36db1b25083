"""What the paper states about its figures, each with what the rows here say: agrees, disagrees, or cannot be told.

A gain is a difference of accuracies, averaged over attacks and sizes within a seed; the interval is over seeds.
"""

__all__ = ["CLAIMS", "Claim", "claim_rows", "stated_gains", "stated_rise", "verdict"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Gain = Mapping[str, Any]
_RISE = "its smallest budget"
_FEWEST_SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One gain or rise that the text of the paper states."""

    figure: str
    words: str
    against: str
    """The other method as rows name it, or `its smallest budget` for a rise with the privacy budget."""
    gain: float
    p_value: float | None = None


def _claim(figure: str, words: str, against: str, gain: float, p_value: float | None = None) -> Claim:
    return Claim(figure=figure, words=words, against=against, gain=gain, p_value=p_value)


CLAIMS = (
    _claim("fig2", "CIFAR-10: HGM_PixelDP certifies more than PixelDP", "pixeldp", 0.0863, 8.14e-7),
    _claim("fig3", "MNIST: HGM_PixelDP certifies more than PixelDP", "pixeldp", 0.0417, 5.89e-3),
    _claim("fig4", "CIFAR-10: Secure-SGD withstands more than with AGM", "secure-sgd-agm", 0.027, 1.22e-6),
    _claim("fig4", "CIFAR-10: Secure-SGD withstands more than DP-SGD", "dpsgd", 0.038, 2.16e-6),
    _claim("fig4", "CIFAR-10: Secure-SGD withstands more than AdLM", "adlm", 0.1775, 2.05e-10),
    _claim("fig4", "CIFAR-10: Secure-SGD rises with the privacy budget", _RISE, 0.1817),
    _claim("fig5", "MNIST: Secure-SGD withstands more than with AGM", "secure-sgd-agm", 0.029, 8.79e-7),
    _claim("fig5", "MNIST: Secure-SGD withstands more than DP-SGD", "dpsgd", 0.1074, 8.54e-14),
    _claim("fig5", "MNIST: Secure-SGD rises with the privacy budget", _RISE, 0.2967),
)


def stated_gains(figure: str) -> dict[str, tuple[float, float | None]]:
    """Return the gains that the paper states in a figure, by the other method, with their p-values."""
    return {c.against: (c.gain, c.p_value) for c in CLAIMS if c.figure == figure and c.against != _RISE}


def stated_rise(figure: str) -> float:
    """Return the rise with the privacy budget that the paper states in a figure."""
    (rise,) = (claim.gain for claim in CLAIMS if claim.figure == figure and claim.against == _RISE)
    return rise


def verdict(seeds: int, lower: float | None, upper: float | None, stated: float) -> tuple[str, str]:
    """Return whether measurements agree with a stated gain, and why.

    They agree if the 95 % interval of our gain over seeds is above zero, whatever its size, and disagree if it is below
    zero, or holds zero and not the gain that is stated.
    """
    if seeds < _FEWEST_SEEDS or lower is None or upper is None:
        return "cannot be told", f"{seeds} seed{'s' * (seeds != 1)}, at least {_FEWEST_SEEDS} are needed"
    if lower > 0:
        size = "as large as" if lower <= stated <= upper else "smaller than" if upper < stated else "larger than"
        return "agrees", f"a gain, {size} stated"
    if upper < 0:
        return "disagrees", "a loss"
    if upper < stated:
        return "disagrees", "no gain seen, and none as large as stated"
    return "cannot be told", "the interval holds both zero and the stated gain"


def claim_rows(gains: Mapping[str, Sequence[Gain]]) -> list[dict[str, Any]]:
    """Return a row per claim, protocol and way to obtain r, from the gains of each figure; one if nothing is measured.

    A gain without a claim of the paper has no row.
    """
    rows = []
    for claim in CLAIMS:
        measured = [gain for gain in gains.get(claim.figure, ()) if _is_about(gain, claim)]
        for gain in measured or [{}]:
            seeds, lower, upper = int(gain.get("seeds", 0)), gain.get("lower"), gain.get("upper")
            answer, reason = verdict(seeds, lower, upper, claim.gain) if gain else ("cannot be told", "not measured")
            rows.append(
                {
                    "figure": claim.figure,
                    "claim": claim.words,
                    "paper_gain": claim.gain,
                    "paper_p_value": claim.p_value,
                    "protocol": gain.get("protocol"),
                    "way": gain.get("way"),
                    **{name: gain.get(name) for name in ("gain", "lower", "upper", "p_value", "examples")},
                    "seeds": seeds,
                    "points": gain.get("points"),
                    "verdict": answer,
                    "reason": reason,
                }
            )
    return rows


def _is_about(gain: Gain, claim: Claim) -> bool:
    if claim.against == _RISE:
        return str(gain["against"]).startswith("secure-sgd at epsilon")
    return bool(gain["against"] == claim.against)
