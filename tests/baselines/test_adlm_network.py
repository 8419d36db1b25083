"""The noise of an AdLM network: where it is, how large, who shares it, and that testing has none."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from securesgd.baselines.adlm.budget import AdlmSettings
from securesgd.baselines.adlm.network import AdlmNetwork, cropped_shape
from securesgd.errors import InvalidInputError
from securesgd.models.networks import network

NOISE = ("input_scale", "input_noise", "loss_noise", "key", "draws")


def adlm_network(name="digits-cnn", shape=(1, 8, 8), batch_size=500, shares=None, **changes):
    settings = AdlmSettings(**{"epsilon": 8.0} | changes)
    torch.manual_seed(0)
    model = AdlmNetwork(network(name, cropped_shape(shape, settings), 10, settings.hidden), shape, settings)
    beta = np.ones(tuple(model.input_scale.shape)) if shares is None else shares
    model.set_noise(beta, batch_size, np.random.default_rng(1))
    return model


def entering(model, x):
    """What the first layer gets, the last time: in training it sees the noiseless images before."""
    seen = []
    hook = model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    model(x)
    hook.remove()
    return seen[-1]


def test_scales_of_the_paper_networks_are_the_published_ones():
    mnist = adlm_network("mnist-cnn", (1, 28, 28), 1800, epsilon=0.3)
    assert mnist.first_layer_sensitivity() == 9_800
    assert mnist.input_scale.numpy() == pytest.approx(72.59, abs=0.01)
    assert mnist.loss_noise.shape == (10, 25)
    shares = {"relevance_share": 0.1, "input_share": 0.6, "loss_share": 0.3, "hidden": 30, "crop": 20}
    cifar = adlm_network("cifar-cnn", (3, 32, 32), 7200, epsilon=2.5, **shares)
    assert cifar.first_layer_sensitivity() == 5_400
    assert cifar.input_scale.numpy() == pytest.approx(0.5)


def test_noise_is_shared_by_the_batch_and_its_channels_and_fresh_at_every_step():
    model = adlm_network(shape=(3, 8, 8), epsilon=1000.0).train()
    x = torch.rand(5, 3, 8, 8)
    first = entering(model, x) - x
    assert torch.allclose(first, first[:1, :1].expand_as(first), atol=1e-5)
    assert torch.equal(entering(model, x), first + x)  # another part of the same batch
    model.advance(steps=3)
    second = entering(model, x) - x
    assert not torch.isclose(first, second).any()
    assert len(first[0, 0].unique()) == 64


def test_input_noise_is_laplace_of_the_wanted_scale():
    """Kolmogorov–Smirnov at 1e-4, 12,800 draws: accepts the scale, rejects 0.9 and 1.1 of it, and the normal law."""
    shares = np.linspace(0.5, 1.5, 64).reshape(8, 8)
    model = adlm_network(shares=shares, epsilon=50.0)
    draws = []
    for _ in range(200):
        draws.append((model.input_noise / model.input_scale).flatten().numpy())
        model.draw()
    values = np.concatenate(draws)
    assert kstest(values, "laplace").pvalue > 1e-4
    for wrong in (0.9, 1.1):
        assert kstest(values / wrong, "laplace").pvalue < 1e-4
    assert kstest(values / np.sqrt(2), "norm").pvalue < 1e-4
    assert model.input_scale.numpy() == pytest.approx(2 * 16 * 9 / (shares * 12.5 * 500), rel=1e-6)


def test_noisy_inputs_and_the_last_hidden_layer_are_clipped():
    model = adlm_network(epsilon=1e-3).train()
    x = torch.rand(4, 1, 8, 8)
    assert entering(model, x).abs().max() == 10
    seen = []
    model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    relu = adlm_network("mnist-cnn", (1, 28, 28), epsilon=1e3).train()
    relu.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(x)
    relu(torch.rand(4, 1, 28, 28))
    assert all(hidden.abs().max() <= 1 for hidden in seen)
    assert seen[1].max() == 1  # without the clipping it would be above


def test_noise_that_a_batch_shares_is_taken_out_by_its_moments():
    """A constant added to the hidden layer of all images changes nothing in training; in testing it does."""
    model = adlm_network().train()
    h = torch.randn(50, 25)
    assert torch.allclose(model.moments(h), model.moments(h + 3), atol=1e-5)
    model.eval()
    assert not torch.allclose(model.moments(h), model.moments(h + 3), atol=1e-5)


def test_testing_uses_the_moments_of_noiseless_batches_and_sees_images_one_by_one():
    model = adlm_network(epsilon=0.1).train()
    x = torch.rand(64, 1, 8, 8)
    for _ in range(200):
        model(x)
        model.draw()
    hidden = torch.nn.Sequential(*list(model.layers)[:-1])(x)
    assert torch.allclose(model.moments.mean, hidden.mean(dim=0), atol=1e-4)
    assert torch.allclose(model.moments.variance, hidden.var(dim=0, correction=0), atol=1e-4)
    model.eval()
    assert torch.allclose(model(x)[:3], model(x[:3]), atol=1e-5)


@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_without_moments_passes(size):
    model = adlm_network().train()
    assert model(torch.rand(size, 1, 8, 8)).shape == (size, 10)
    assert not model.moments.mean.any()


def test_testing_has_no_noise():
    model = adlm_network(epsilon=0.1).eval()
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(entering(model, x), x)
    outputs = model(x)
    model.draw()
    assert torch.equal(model(x), outputs)
    assert not torch.allclose(model.train()(x), outputs)


def test_images_are_cropped_in_the_middle_and_mapped_to_signed_values():
    model = adlm_network(shape=(3, 12, 10), crop=8, signed=True).eval()
    x = torch.rand(2, 3, 12, 10)
    assert torch.equal(entering(model, x), 2 * x[..., 2:10, 1:9] - 1)


def test_the_noise_of_the_loss_is_linear_in_the_weights_and_drawn_once():
    """The mean objective's gradient moves by exactly -P; a later step has the same P."""
    model = adlm_network().eval()
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6)

    def gradient():
        (found,) = torch.autograd.grad(model.loss(model(x), y).mean(), model.head.weight)
        return found

    with_noise, noise = gradient(), model.loss_noise.clone()
    model.advance(steps=5)
    assert torch.equal(model.loss_noise, noise)
    model.loss_noise.zero_()
    assert torch.allclose(with_noise, gradient() - noise, atol=1e-5)
    assert model.loss(model(x), y).shape == (6,)


def test_the_output_starts_where_the_mean_loss_of_balanced_classes_is_least():
    model = adlm_network().eval()
    model.loss_noise.zero_()
    logits = model.head.bias.detach().repeat(10, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(model.loss(logits, torch.arange(10)).sum(), logits)
    assert torch.allclose(gradient.sum(dim=0), torch.zeros(10), atol=1e-5)


def test_loss_noise_has_the_wanted_scale():
    """|P| of a Laplace law has mean b: within 15 % for 10 × 100 draws (5 standard deviations), so not b/2 or 2b."""
    model = adlm_network(hidden=100, epsilon=2.0, batch_size=100)
    wanted = 10 * (100 + 100**2 / 4) / (1.0 * 100)
    assert model.loss_noise.abs().mean().item() == pytest.approx(wanted, rel=0.15)


def test_after_the_last_step_all_noise_is_forgotten():
    model = adlm_network()
    model.advance(steps=2)
    assert model.input_noise.any()
    model.advance(steps=2)
    for name in NOISE:
        assert not getattr(model, name).any(), name


def test_the_next_draws_follow_from_the_saved_state():
    model, restored = adlm_network(), adlm_network(shares=np.full((8, 8), 0.3))
    model.advance(steps=9)
    restored.load_state_dict(model.state_dict())
    for network_ in (model, restored):
        network_.advance(steps=9)
    assert torch.equal(model.input_noise, restored.input_noise)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AdlmSettings(epsilon=0), "epsilon is 0"),
        (lambda: AdlmSettings(loss_share=0.6), "add up to 1.1"),
        (lambda: AdlmSettings(input_share=-0.25, loss_share=1.0), "input_share is -0.25"),
        (lambda: AdlmSettings(hidden=0), "hidden is 0"),
        (lambda: AdlmSettings(crop=0), "crop is 0"),
        (lambda: AdlmSettings(signed="yes"), "signed is 'yes'"),
        (lambda: AdlmSettings(relevance_offset=1), "relevance_offset is 1"),
        (lambda: adlm_network(crop=9), "crop is 9 but images are 8×8"),
        (lambda: cropped_shape((64,), AdlmSettings()), r"adlm needs images, .* got inputs of shape \(64,\)"),
    ],
)
def test_bad_settings_are_one_clear_line(call, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
