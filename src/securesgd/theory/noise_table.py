"""The three questions about a Gaussian mechanism as table rows: which sigma, which epsilon, which delta?"""

__all__ = ["noise_rows"]

import itertools
from collections.abc import Sequence
from typing import Any

from securesgd.errors import InvalidInputError, nearest
from securesgd.theory.gaussian import MECHANISMS, delta_from, epsilon_from, noise_multiplier
from securesgd.validate import positive_array


def noise_rows(
    *,
    epsilon: Sequence[float] = (),
    delta: Sequence[float] = (),
    sigma: Sequence[float] = (),
    sensitivity: float = 1.0,
    mechanism: str = "all",
) -> list[dict[str, Any]]:
    """Return a row per mechanism and pair of the two given quantities, with the third one answered.

    A mechanism whose theorem does not apply gets a row with a `note` instead of an answer if `mechanism` is "all",
    and raises InvalidInputError if it was asked for by name.
    """
    if mechanism not in (*MECHANISMS, "all"):
        raise InvalidInputError(f"unknown mechanism {mechanism!r}: {nearest(mechanism, (*MECHANISMS, 'all'))}")
    if bool(epsilon) + bool(delta) + bool(sigma) != 2:
        raise InvalidInputError("give two of epsilon, delta and sigma; the third is the answer")
    width = float(positive_array("sensitivity", sensitivity))
    positive_array("epsilon", list(epsilon))
    rows = []
    names = MECHANISMS if mechanism == "all" else (mechanism,)
    given: list[Sequence[float | None]] = [values or [None] for values in (epsilon, delta, sigma)]
    for (eps, dlt, std), name in itertools.product(itertools.product(*given), names):
        row = {"mechanism": name, "epsilon": eps, "delta": dlt, "sensitivity": width, "sigma": std}
        try:
            row |= _answer(eps, dlt, std, width, name)
        except InvalidInputError as error:
            if mechanism != "all" or _fails_everywhere(eps, dlt, std, width):
                raise
            row["note"] = str(error)
        rows.append(row)
    return rows


def _answer(eps: Any, dlt: Any, std: Any, width: float, mechanism: Any) -> dict[str, float]:
    if std is None:
        multiplier = noise_multiplier(eps, dlt, mechanism)
        return {"noise_multiplier": multiplier, "sigma": multiplier * width}
    multiplier = float(positive_array("sigma", std)) / width
    if eps is None:
        return {"noise_multiplier": multiplier, "epsilon": epsilon_from(multiplier, dlt, mechanism)}
    return {"noise_multiplier": multiplier, "delta": delta_from(multiplier, eps, mechanism)}


def _fails_everywhere(eps: Any, dlt: Any, std: Any, width: float) -> bool:
    """Return whether the input is wrong for the exact mechanism too, so that no row would hold an answer."""
    try:
        _answer(eps, dlt, std, width, "analytic")
    except InvalidInputError:
        return True
    return False
