"""Votes: the model's own function, fresh and shared as promised, the same whatever else is certified."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest
from torch import nn

from securesgd.certificates.votes import BLOCK, NoiseSource, NoiseStream, Votes, draws_per_pass, stream_number
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.split_network import SplitNetwork

from .closed_forms import linear_input, two_class_linear


def small(place="first-layer", learned=False, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 4 * 4, 4)]
    model = NoisyNetwork(nn.Sequential(*layers), (1, 8, 8), place=place)
    model.set_noise(np.random.default_rng(seed).uniform(0.2, 0.8, model.units), learned=learned)
    return model.eval()


def votes(model, inputs, indices, draws, seed=0, purpose="counted", scores="votes"):
    running = Votes(
        SplitNetwork(model),
        inputs,
        np.asarray(indices),
        source=NoiseSource.from_seed(seed),
        purpose=purpose,
        scores=scores,
    )
    return running.draw(np.arange(len(inputs)), draws)


INPUTS = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(5))
INDICES = np.array([3, 17, 4, 250, 9_999, 31, 77, 78, 79, 80, 81, 82])


@pytest.mark.parametrize("scores", ["votes", "soft"])
@pytest.mark.parametrize(("place", "learned"), [("first-layer", False), ("first-layer", True), ("input", False)])
def test_an_examples_votes_do_not_depend_on_the_others(place, learned, scores):
    """Bit by bit: alone, in any order, in any company, in stages."""
    model = small(place, learned)
    together = votes(model, INPUTS, INDICES, 200, scores=scores)
    order = np.random.default_rng(1).permutation(12)
    assert np.array_equal(votes(model, INPUTS[order], INDICES[order], 200, scores=scores), together[order])
    for i in (0, 5):
        assert np.array_equal(votes(model, INPUTS[i : i + 1], INDICES[i : i + 1], 200, scores=scores)[0], together[i])
    staged = Votes(
        SplitNetwork(model), INPUTS, INDICES, source=NoiseSource.from_seed(0), purpose="counted", scores=scores
    )
    for until in (BLOCK, 3 * BLOCK, 200):
        staged.draw(np.arange(12), until)
    np.testing.assert_allclose(staged.totals, together, rtol=1e-12)
    assert np.allclose(together.sum(1), 200)


def test_seed_purpose_and_index_choose_the_noise():
    model, x = small(), INPUTS[:1].expand(4, 1, 8, 8)
    base = votes(model, x, [0, 1, 2, 3], 500)
    assert np.array_equal(base, votes(model, x, [0, 1, 2, 3], 500))
    for other in (votes(model, x, [0, 1, 2, 3], 500, seed=1), votes(model, x, [0, 1, 2, 3], 500, purpose="recheck")):
        assert not np.array_equal(base, other)
    same = stream_number(np.arange(100))
    assert np.array_equal(same, stream_number(np.arange(100)))
    assert len(np.unique(same)) == 16
    for step in (1, 2, 16, 20, 64):  # regular choices are spread too
        counts = np.bincount(stream_number(step * np.arange(1_600)), minlength=16)
        assert counts.min() > 50


def test_seeded_votes_stay_what_they_were():
    """Committed rows were made by these draws."""
    expected = [[114, 61, 13, 68], [70, 54, 39, 93], [72, 105, 16, 63], [115, 70, 14, 57]]
    assert votes(small(), INPUTS[:4], INDICES[:4], 256).astype(int).tolist() == expected


def test_draws_of_one_example_are_independent_normals():
    """Blocks, streams and purposes are all different numbers; each unit N(0, 1)."""
    shape = (40,)
    streams = [
        NoiseStream(NoiseSource.from_seed(0), purpose, stream, shape, torch.float32)
        .draws(0, 20 * BLOCK)
        .double()
        .numpy()
        for purpose in ("selection", "counted", "recheck")
        for stream in (0, 1)
    ]
    for draws in streams:
        assert kstest(draws.ravel(), "norm").pvalue > 1e-4
        n = draws.shape[0]
        statistic = (draws**2).sum(axis=0)
        assert ((chi2.ppf(1e-6, n) < statistic) & (statistic < chi2.ppf(1 - 1e-6, n))).all()
        limit = 5 / np.sqrt(draws[1:].size)
        for lag in (1, BLOCK, 3 * BLOCK):  # neighbours, and the same place in another block
            assert abs(np.mean(draws[lag:] * draws[:-lag])) < limit
    limit = 5 / np.sqrt(streams[0].size)
    for i, first in enumerate(streams):
        for second in streams[:i]:
            assert abs(np.mean(first * second)) < limit


def test_draw_i_is_the_same_however_it_is_asked_for():
    stream = NoiseStream(NoiseSource.from_seed(3), "counted", 2, (5,), torch.float32)
    whole = stream.draws(0, 100)
    assert torch.equal(whole[64:], stream.draws(64, 100))
    assert torch.equal(whole[:10], stream.draws(0, 10))


@pytest.mark.parametrize("place", ["first-layer", "input"])
def test_vote_shares_are_the_exact_probabilities(place):
    """Also a test of the size of the noise: two thirds of it, or three halves, would be far outside."""
    w, sigma, draws = [1.0, -2.0, 0.5], 0.3, 20_000
    for p in (0.6, 0.8413, 0.97):
        x = linear_input(w, p, sigma, place)
        share = votes(two_class_linear(w, sigma, place), x[None], [0], draws)[0, 0] / draws
        assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / draws)
        for factor in (2 / 3, 3 / 2):
            other = votes(two_class_linear(w, factor * sigma, place), x[None], [0], draws)[0, 0] / draws
            assert abs(other - p) > 5 * np.sqrt(p * (1 - p) / draws)


def by_the_model_itself(model, x, normals):
    """The slow obvious way: the model's own forward pass on each noisy layer output."""
    noisy = model.noisy.clean(x[None]) + model.noisy.noise.std * normals
    with torch.no_grad(), model.from_layer(noisy):
        return model(x[None].expand(len(normals), *x.shape))


CASES = {
    "convolution": lambda: small(),
    "learned": lambda: small(learned=True),
    "input": lambda: small("input"),
    "input learned": lambda: small("input", learned=True),
    "flattened linear": lambda: NoisyNetwork(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 4)), (1, 8, 8), place="first-layer"
    ).eval(),
    "input, flattened linear": lambda: NoisyNetwork(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, 4)), (1, 8, 8), place="input"
    ).eval(),
    "input, no linear layer first": lambda: NoisyNetwork(
        nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(64, 4)), (1, 8, 8), place="input"
    ).eval(),
    "mnist-cnn": lambda: NoisyNetwork(network("mnist-cnn", (1, 8, 8), 4), (1, 8, 8), place="first-layer").eval(),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cut_network_is_the_model(name):
    """In double precision to rounding, and the model is left as it was."""
    torch.manual_seed(0)
    model = CASES[name]().double()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = INPUTS[0].double()
    normals = torch.randn(50, *model.output_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    cut = SplitNetwork(model)
    with torch.inference_mode():
        outputs = cut.outputs(cut.clean(x[None]) + cut.spread(normals))
    torch.testing.assert_close(outputs.clone(), by_the_model_itself(model, x, normals), rtol=1e-9, atol=1e-9)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.noisy.given is None


def test_noise_at_the_input_goes_through_the_first_layer_once():
    """The cut is after the first layer where there is one, else at the input."""
    assert SplitNetwork(CASES["input"]()).shape == (3, 4, 4)
    assert SplitNetwork(CASES["input"]()).noise_shape == (1, 8, 8)
    assert SplitNetwork(CASES["input, no linear layer first"]()).shape == (1, 8, 8)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.last(torch.tanh(self.first(x)) + x)


def test_a_connection_around_the_first_layer_is_not_cut():
    """Fine with noise at the input; cutting after the first layer would drop the other path."""
    torch.manual_seed(0)
    model = NoisyNetwork(Around(), (1, 8, 8), place="input").eval().double()
    cut = SplitNetwork(model)
    assert cut.shape == (1, 8, 8)
    normals = torch.randn(20, 1, 8, 8, dtype=torch.float64)
    with torch.inference_mode():
        outputs = cut.outputs(cut.clean(INPUTS[:1].double()) + cut.spread(normals))
    torch.testing.assert_close(outputs.clone(), by_the_model_itself(model, INPUTS[0].double(), normals))


def test_a_pass_fits_the_cache_and_memory_does_not_grow_with_the_draws(monkeypatch):
    model = NoisyNetwork(network("mnist-cnn", (1, 28, 28), 10), (1, 28, 28), place="first-layer").eval()
    assert draws_per_pass(SplitNetwork(model)) == BLOCK
    assert draws_per_pass(SplitNetwork(small())) == 512
    rows = []
    whole = SplitNetwork.outputs
    monkeypatch.setattr(SplitNetwork, "outputs", lambda self, h: rows.append(len(h)) or whole(self, h))
    votes(small(), INPUTS[:2], [0, 1], 3_000)
    assert max(rows) == 512
    assert sum(rows) == 6_000
