"""A learned r that moves as log-scales by blocks: its gradient, the clipping bound, the grids, and Δ afterwards."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import securesgd as ss
from securesgd.clipping.engine import ClippingEngine
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.errors import InvalidInputError
from securesgd.models.noise_layer import Scale, ScaleLearning
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.redistribution import Redistribution
from securesgd.run import load_run
from securesgd.run_training import train_run

SHAPE = (2, 7, 7)


def loss(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")


def learning(**changes):
    return ScaleLearning(**{"grid": 2, "steps": 6, "rate": 1.0, "share": 1.0} | changes)


def build(place="input", norm="linf", radius=0.05, **changes):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 49, 4))
    model = NoisyNetwork(
        layers, SHAPE, place=place, norm=norm, radius_per_std=radius, redistribution="learned", start="random",
        learning=learning(**changes),
    )  # fmt: skip
    return model.train()


def silence(model):
    """Take the noise away, so that gradients of two passes can be compared."""
    model.noisy.noise.std.zero_()
    return model


def examples(count=12):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, *SHAPE, generator=generator), torch.randint(4, (count,), generator=generator)


def beside_nobody(inputs, targets):
    """One example beside a null record: a batch of two takes the fast path, and the sum is that of the example."""
    return torch.cat([inputs, torch.full_like(inputs, float("nan"))]), torch.cat([targets, targets])


def blocks(size, side):
    return torch.arange(size) * side // size


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("place", ["input", "first-layer"])
def test_its_gradient_is_that_of_the_log_scale_of_each_block(place, slow):
    model, (inputs, targets) = silence(build(place, share=3.0)), examples(1)
    engine = ClippingEngine(model, 1e6)
    if slow:
        engine.slow_reason = "asked for"
    computed = engine.clipped_sum(*beside_nobody(inputs, targets), loss).gradients["noisy.scale.values"]
    assert (engine.slow_reason is None) != slow
    scale = model.noisy.scale
    values = scale.values.detach().clone()
    rows, columns = (blocks(n, 2) for n in values.shape[1:])
    expected = torch.zeros_like(values)
    for channel in range(len(values)):
        for i in range(2):
            for j in range(2):
                mask = torch.zeros_like(values)
                mask[channel] = (rows == i).float()[:, None] * (columns == j).float()
                t = torch.zeros((), requires_grad=True)  # the log-scale of this block alone
                h = model.noisy.layer(inputs) * (values * torch.exp(t * mask))
                with model.from_layer(h):
                    (of_block,) = torch.autograd.grad(loss(model(inputs), targets).sum(), t)
                expected += 3.0 * of_block * mask / mask.sum()
    assert torch.allclose(computed.float(), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("share", [1.0, 1e4])
def test_no_example_moves_the_sum_by_more_than_the_clipping_norm(share):
    """Their share of the norm is taken inside the clipping, so the sensitivity is what it was."""
    model, (inputs, targets) = build(share=share), examples()
    engine = ClippingEngine(model, 0.1)
    for example in range(len(inputs)):
        part = slice(example, example + 1)
        sums = engine.clipped_sum(*beside_nobody(inputs[part], targets[part]), loss, copies=2).gradients
        assert engine.slow_reason is None
        norm = torch.cat([g.flatten() for g in sums.values()]).norm()
        assert norm <= engine.sensitivity
        if share > 1:  # the log-scales have nearly all of it
            assert sums["noisy.scale.values"].norm() > 0.99 * 0.1
    assert engine.sensitivity == ClippingEngine(build(), 0.1).sensitivity


def test_grids_are_refined_and_keep_what_they_learned():
    model = build(steps=6)
    scale = model.noisy.scale
    assert scale.learning.sides(7) == [2, 4, 7]
    before = scale.values.detach().clone()
    seen = []
    for _ in range(6):
        start = scale.values.detach().clone()
        with torch.no_grad():
            scale.values.add_(0.05 * torch.randn_like(scale.values))
        model.project()
        moved = (scale.values.detach() / start).log()[0]  # and the size of all of them, to keep Δ
        seen.append(len(moved.flatten().mul(1e4).round().unique()))
    assert seen[:4] == [4, 4, 16, 16]
    assert min(seen[4:]) > 40  # of 49
    assert not torch.allclose(scale.values, before, rtol=0.02)


def test_rate_and_limit_of_a_step():
    for rate, expected in ((1.0, 0.1), (3.0, 0.3), (1e6, 1.0)):
        scale = Scale(torch.ones(SHAPE), learning(rate=rate))
        with torch.no_grad():
            scale.values.add_(0.1)
        scale.move()
        assert torch.allclose(scale.values.log(), torch.full(SHAPE, expected), atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_delta_is_kept_after_each_step_and_is_that_of_the_deployed_layer(norm):
    model, (inputs, _) = build(norm=norm, rate=50.0), examples(3)
    for _ in range(6):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.project()
        assert model.sensitivity(norm).upper == pytest.approx(20, rel=1e-5)
    layer = model.noisy
    training = layer.clean(inputs)
    assert torch.equal(training, model.eval().noisy.clean(inputs))
    assert torch.equal(training, inputs * layer.scale.values)  # what Δ is computed from is what is applied


def test_without_it_a_learned_scale_is_what_it_was():
    scale = Scale(torch.ones(3))
    assert list(scale.state_dict()) == ["values"]
    assert repr(scale) == "Scale()"
    assert "scale_" not in run_config("digits", "secure-sgd").to_toml()


QUICK = {
    "redistribution": "learned", "scale_grid": 2, "scale_rate": 2.0, "scale_share": 50.0, "steps": 12,
    "batch_size": 200, "copies": 1, "accountant": "rdp", "noise_seed": 1,
}  # fmt: skip


def test_a_run_has_it_in_its_records_and_costs_no_more(tmp_path):
    run = train_run(run_config("digits", "secure-sgd", **QUICK), tmp_path / "blocks")
    plain = {name: value for name, value in QUICK.items() if not name.startswith("scale_")}
    other = train_run(run_config("digits", "secure-sgd", **plain), tmp_path / "plain")
    assert run.privacy.epsilon == other.privacy.epsilon
    loaded = load_run(tmp_path / "blocks")
    assert loaded.config.robustness.scale_learning(12) == ScaleLearning(grid=2, steps=12, rate=2.0, share=50.0)
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), run.model.parameters(), strict=True))
    r = Redistribution.load(tmp_path / "blocks" / "redistribution.json")
    assert r.details == {"start": "prior", "scale_grid": 2, "scale_rate": 2.0, "scale_share": 50.0}
    assert r.r != Redistribution.load(tmp_path / "plain" / "redistribution.json").r
    assert loaded.check().passed


def test_a_model_of_the_users_own_is_recorded_and_loaded_with_it(tmp_path):
    digits = load_data("digits")
    data = digits.train_inputs[:200], digits.train_targets[:200]

    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def noisy(steps):
        how = ss.ScaleLearning(grid=2, steps=steps, share=10.0)
        return ss.NoisyNetwork(net(), (1, 8, 8), radius_per_std=0.05, redistribution="learned", learning=how)

    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 50, "steps": 6, "accountant": "rdp"}
    with pytest.raises(InvalidInputError, match="learning has 5 steps, the training 6"):
        ss.train(noisy(5), data, out=tmp_path / "run", **settings)
    run = ss.train(noisy(6), data, out=tmp_path / "run", **settings)
    loaded = ss.load_run(tmp_path / "run", network=net())
    assert loaded.config.robustness.scale_learning(6) == run.model.learning == loaded.model.learning
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), run.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_grid": 0}, "scale_grid is 0"),
        ({"scale_grid": 9}, "scale_grid is 9, but the noisy layer has shape .*at most as many blocks"),
        ({"scale_grid": 2, "scale_rate": -1.0}, "scale_rate is -1"),
        ({"scale_grid": 2, "scale_share": float("inf")}, "scale_share is inf"),
        ({"scale_share": 2.0}, "with scale_grid"),
        ({"scale_grid": 2, "redistribution": "prior"}, "scale_grid is for redistribution = 'learned'"),
    ],
)
def test_settings_that_are_not_valid_are_one_clear_line(changes, message, tmp_path):
    with pytest.raises(InvalidInputError, match=message):
        train_run(run_config("digits", "secure-sgd", **{"redistribution": "learned"} | changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
