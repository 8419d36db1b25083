"""Noisy models whose smoothed classifier is known exactly, so that a certificate can be compared with the truth."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from torch import nn

from securesgd.models.noisy import NoisyNetwork

DUAL = {"l1": np.inf, "l2": 2, "linf": 1}


def two_class_linear(weights, sigma=1.0, place="first-layer"):
    """Logits ±(w·x − ½Σw), with noise in both or at the input; at x = ½ + a the smoothed margin is w·a."""
    w = torch.as_tensor(np.asarray(weights), dtype=torch.float32)
    layer = nn.Linear(len(w), 2)
    with torch.no_grad():
        layer.weight.copy_(torch.stack([w, -w]))
        layer.bias.copy_(torch.stack([-w.sum() / 2, w.sum() / 2]))
    model = NoisyNetwork(nn.Sequential(layer), (len(w),), place=place)
    model.set_noise(np.full(model.units, sigma))
    return model.eval()


def linear_input(weights, p, sigma=1.0, place="first-layer"):
    """An input for which class 0 of `two_class_linear` wins with probability p."""
    w = np.asarray(weights, dtype=np.float64)
    spread = sigma * np.sqrt(2) / 2 if place == "first-layer" else sigma * np.linalg.norm(w)
    return torch.as_tensor(0.5 + w * (ndtri(p) * spread) / (w @ w), dtype=torch.float32)


def linear_truth(weights, x, norm, sigma=1.0, place="first-layer"):
    """Exact (probability of class 0, distance to the decision boundary of the smoothed classifier in `norm`)."""
    w = np.asarray(weights, dtype=np.float64)
    margin = float(w @ (x.double().numpy() - 0.5))
    spread = sigma * np.sqrt(2) / 2 if place == "first-layer" else sigma * np.linalg.norm(w)
    return float(ndtr(margin / spread)), abs(margin) / np.linalg.norm(w, DUAL[norm])


@dataclass(frozen=True)
class BumpyNetwork:
    """Three classes over one noisy unit h = w·x + N(0, σ²): each class wins on intervals of a line.

    E of a class's votes at a clean value h is the Gaussian measure of its intervals: quadrature without error, once the
    ends of the intervals are known.
    """

    model: NoisyNetwork
    weights: np.ndarray
    sigma: float

    @cached_property
    def intervals(self):
        """(ends, winners): class winners[i] wins between ends[i] and ends[i + 1]."""
        grid = np.linspace(-30, 30, 600_001)
        winner = self._winner(grid)
        at = np.flatnonzero(winner[1:] != winner[:-1])
        low, high = grid[at], grid[at + 1]
        for _ in range(20):
            middle = (low + high) / 2
            same = self._winner(middle) == winner[at]
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return np.r_[-np.inf, low, np.inf], np.r_[winner[at], winner[-1]]

    def _winner(self, h):
        with torch.inference_mode(), self.model.from_layer(torch.from_numpy(h.reshape(-1, 1)).float()):
            return self.model(torch.zeros(h.size, len(self.weights))).argmax(1).numpy()

    def probabilities(self, h):
        """E of the votes at each clean value h of the unit, [len(h), 3]."""
        ends, winners = self.intervals
        mass = np.diff(ndtr((ends - np.atleast_1d(h)[:, None]) / self.sigma), axis=1)
        return np.stack([mass[:, winners == k].sum(1) for k in range(3)], axis=1)

    def truth(self, x, norm):
        """Exact (class, probabilities, radius) of the smoothed classifier at x, in `norm`."""
        h = float(self.weights @ x.double().numpy())
        at = self.probabilities(h)[0]
        top, shifts = int(at.argmax()), np.linspace(0, 20 * self.sigma, 4001)
        nearest = np.inf
        for side in (-1, 1):

            def lead(t, side=side):
                p = self.probabilities(h + side * np.atleast_1d(t))
                return p[:, top] - np.delete(p, top, axis=1).max(1)

            lost = np.flatnonzero(lead(shifts) < 0)
            if len(lost):
                nearest = min(nearest, brentq(lambda t: lead(t)[0], shifts[lost[0] - 1], shifts[lost[0]], xtol=1e-9))
        return top, at, nearest / np.linalg.norm(self.weights, DUAL[norm])


def bumpy_network(seed=0, sigma=0.5, inputs=4):
    generator = torch.Generator().manual_seed(seed)
    first, hidden, last = nn.Linear(inputs, 1, bias=False), nn.Linear(1, 12), nn.Linear(12, 3)
    with torch.no_grad():
        for parameter, scale in ((first.weight, 1.0), (hidden.weight, 2.0), (hidden.bias, 2.0), (last.weight, 1.0)):
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        last.bias.zero_()
    model = NoisyNetwork(nn.Sequential(first, hidden, nn.Tanh(), last), (inputs,), place="first-layer").eval()
    model.set_noise(np.array([sigma]))
    return BumpyNetwork(model, first.weight.detach().double().numpy()[0], sigma)


def middle_network(sigma=0.5, half_width=0.5, weights=(1.0, 0.5)):
    """Three classes on a line: 1 in the middle, 0 to the left, 2 to the right; around the middle 1 has two rivals."""
    first, last = nn.Linear(len(weights), 1, bias=False), nn.Linear(1, 3)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([weights]))
        last.weight.copy_(torch.tensor([[-1.0], [0.0], [1.0]]))
        last.bias.copy_(torch.tensor([0.0, half_width, 0.0]))
    model = NoisyNetwork(nn.Sequential(first, last), (len(weights),), place="first-layer").eval()
    model.set_noise(np.array([sigma]))
    return BumpyNetwork(model, np.array(weights), sigma)
