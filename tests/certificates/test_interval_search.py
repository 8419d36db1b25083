"""The search on a grid: whatever the guesses say, a step that is returned was proven."""

import numpy as np
import pytest

from securesgd.certificates.interval.search import guessed_crossing, proven_steps

MOST = 10_000
GENERATOR = np.random.default_rng(0)
TRUTH = np.concatenate([[0.0, 0.4, 1.0, 1.5, 9999.0, 10_000.0, 2e4], GENERATOR.uniform(0, 10_000, 200)])
CURVES = {
    "line": lambda share: 1 - share,
    "concave": lambda share: 1 - share**2,
    "convex": lambda share: np.exp(-3 * share) - np.exp(-3),
    "kink": lambda share: np.minimum(1 - share / 2, 5 - 5 * share),
    "steps": lambda share: np.where(share < 1, 1.0, -1.0),
    "unknown beyond": lambda share: np.where(share < 1, 1 - share, np.nan),
}


def margin_of(curve, asked):
    """Return the margin of examples that cross 0 at `TRUTH`, which notes what was asked and held."""

    def margin(examples, steps):
        with np.errstate(over="ignore"):
            value = np.where(TRUTH[examples] > 0, curve(steps / np.maximum(TRUTH[examples], 1e-9)), -1.0)
        asked.extend((int(e), float(s)) for e, s, v in zip(examples, steps, value, strict=True) if v > 0)
        return value

    return margin


@pytest.mark.parametrize("name", CURVES)
def test_the_largest_step_is_found_and_proven(name):
    asked, proven = [], []
    at_zero = np.where(TRUTH > 0, CURVES[name](np.zeros(len(TRUTH))), -1.0)
    crossing, fall = guessed_crossing(margin_of(CURVES[name], asked), at_zero, np.full(len(TRUTH), 20.0), MOST)
    known = np.zeros(len(TRUTH), dtype=np.int64)
    steps = proven_steps(margin_of(CURVES[name], proven), crossing, fall, known, MOST)
    expected = np.clip(np.ceil(TRUTH) - 1, 0, MOST)
    assert ((steps == expected) | (steps == expected - 1)).all()
    assert (steps == expected).mean() > 0.98
    assert all(step == 0 or (e, step) in set(proven) for e, step in enumerate(steps))
    if name in ("line", "concave", "kink"):
        assert len(asked) < 10 * len(TRUTH)


@pytest.mark.parametrize("factor", [0.01, 0.9, 1.1, 100.0, np.nan])
def test_wrong_guesses_cost_time_and_no_proof(factor):
    """Crossings and slopes that are not the margin's: a step returned is still one that held."""
    proven = []
    crossing, fall = np.nan_to_num(np.clip(TRUTH * factor, 0, MOST)), np.full(len(TRUTH), factor / 100)
    steps = proven_steps(
        margin_of(CURVES["concave"], proven), crossing, fall, np.zeros(len(TRUTH), dtype=np.int64), MOST
    )
    assert (steps < np.maximum(TRUTH, 1)).all()
    assert all(step == 0 or (e, step) in set(proven) for e, step in enumerate(steps))


def test_what_is_not_known_is_not_proven():
    count = np.arange(1, 6)
    steps = proven_steps(
        lambda examples, steps: np.full(len(examples), np.nan),
        count * 3.0,
        np.ones(5),
        np.zeros(5, dtype=np.int64),
        100,
    )
    assert (steps == 0).all()
    kept = proven_steps(lambda examples, steps: np.full(len(examples), -1.0), count * 3.0, np.ones(5), count, 100)
    assert (kept == count).all()
