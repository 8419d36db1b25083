"""An attacker who reads bits: from the weights of one step, was the example in?

She knows all examples but one, the initial weights and every setting, and recomputes the clipped sum with and without
the example bit for bit. Subtracting the right one from the released step leaves pure noise. If noise lies on a lattice
of its own, the right remainder is on it and the wrong one is not. The old noise loses this game every time; the noise
of a grid release must leave no more than epsilon allows.
"""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from securesgd.clipping.engine import ClippingEngine
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.theory import delta_from
from securesgd.training.loop import per_example_cross_entropy

from .old_noise import box_muller

RUNS = 200
CLIP, RATE, BATCH = 1.0, 256.0, 20
FLAKE = 1e-6


def world(seed=0):
    """Return a model with 4,810 weights, the data, and the clipped sums with and without the last example."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    inputs, targets = torch.rand(BATCH + 1, 64), torch.randint(10, (BATCH + 1,))
    engine = ClippingEngine(model, CLIP)
    sums = {}
    for member in (True, False):
        shown = inputs.clone()
        if not member:
            shown[-1] = float("nan")  # a null record: it keeps its place and contributes nothing
        gradients = engine.clipped_sum(shown, targets, per_example_cross_entropy).gradients
        sums[member] = torch.cat([gradient.flatten().double() for gradient in gradients.values()])
    return engine, sums


def step(weights, released):
    """Return the weights after one step of SGD, in float32 as the optimizer has them."""
    return weights - RATE * (released / BATCH).to(torch.float32)


def circle_score(before, after, total, std):
    """Return how far pairs of what is left after subtracting `total` are from the circles of 32-bit Box and Muller."""
    noise = ((before.double() - after.double()) * BATCH / RATE - total) / std
    half = -(-len(noise) // 2)
    squares = noise[:half] ** 2 + torch.cat([noise[half:], noise.new_zeros(2 * half - len(noise))]) ** 2
    near = squares[: half - 1] < 0.03  # there float32 keeps the digits that show the lattice
    steps = torch.exp(-squares[: half - 1][near] / 2) * 2.0**24
    return (steps - steps.round()).abs().mean().item()


def grid_score(before, after, total, grid):
    """Return how far what is left is from the multiples of the public grid."""
    noise = ((before.double() - after.double()) * BATCH / RATE - total) / grid
    return (noise - noise.round()).abs().mean().item()


def wins(release, scores):
    """Return in how many runs with the example, and without, the attacker says "in"."""
    _, sums = world()
    before = torch.zeros_like(sums[True], dtype=torch.float32)
    said = {True: 0, False: 0}
    for member in said:
        for run in range(RUNS):
            after = step(before, release(sums[member], run + RUNS * member))
            closer = (score(before, after, sums[True]) < score(before, after, sums[False]) for score in scores)
            said[member] += any(closer)
    return said


def allowed(said, noise_multiplier):
    """Return whether the counts are possible for a mechanism of this noise multiplier, at flake rate 1e-6.

    The advantage of any test is at most the total variation distance of the two worlds, δ(ε = 0).
    """
    deviation = np.sqrt(np.log(2 / FLAKE) / (2 * RUNS))  # Hoeffding, of each of the two shares
    return (said[True] - said[False]) / RUNS <= delta_from(noise_multiplier, 0.0) + 2 * deviation


@pytest.mark.parametrize("noise_multiplier", [4.0, 38.0])  # epsilon 1 and 0.1 at delta 1e-5
def test_bits_of_a_step_tell_nothing(noise_multiplier):
    engine, sums = world()
    assert (sums[True] - sums[False]).norm() > 0.9 * CLIP
    std = noise_multiplier * CLIP

    def old(total, run):
        noise = box_muller(np.random.Generator(np.random.SFC64(run)), len(total))
        return total.float().add_(noise, alpha=std)

    grid = GridRelease(sensitivity=engine.sensitivity, noise_multiplier=noise_multiplier, size=len(sums[True]))

    def new(total, run):
        return grid.release([total.clone()], KeyStream(run.to_bytes(16)))[0]

    def circles(before, after, total):
        return circle_score(before, after, total, std)

    def lattice(before, after, total):
        return grid_score(before, after, total, grid.grid)

    broken = wins(old, [circles])
    assert broken == {True: RUNS, False: 0}
    assert not allowed(broken, noise_multiplier)
    for scores in ([circles], [lattice]):
        assert allowed(wins(new, scores), noise_multiplier), scores


def test_no_output_is_impossible_without_the_example():
    """The old noise ends at 6.76 standard deviations: at noise 0.3 the example moves many outputs beyond that end.

    Whoever sees one knows that the example was in; 1e-5 was stated for it. The grid release has no end: the share of
    outputs beyond any bound is that of the normal distribution, with the example and without.
    """
    z, draws, end = 0.3, 4_000_000, 6.77
    shifted = 1 / z + box_muller(np.random.Generator(np.random.SFC64(0)), draws).double()
    assert (shifted > end).sum() > 10 * 1e-5 * draws
    assert box_muller(np.random.Generator(np.random.SFC64(1)), draws).abs().max() < end
    release = GridRelease(sensitivity=1.0, noise_multiplier=z, size=draws)
    noise = release.release([torch.zeros(draws, dtype=torch.float64)], KeyStream(bytes(16)))[0] / release.std
    for bound in (end - 1 / z, 4.2):
        expected = draws * norm.sf(bound)
        assert abs((noise > bound).sum().item() - expected) < 5 * np.sqrt(expected)
