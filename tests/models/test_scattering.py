import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securesgd.clipping.engine import ClippingEngine
from securesgd.errors import InvalidInputError
from securesgd.models.layer_graph import layer_graph
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.scattering import Scattering
from securesgd.run import load_run
from tests.command_line import run_here
from tests.models.record_kymatio import PLACES, RECORD, SHAPES, image

SIZES = [(8, 8), (28, 28), (32, 32), (29, 30)]


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("shape", SHAPES)
def test_coefficients_are_those_of_kymatio(shape: tuple[int, int, int]) -> None:
    recorded = json.loads(RECORD.read_text())["x".join(map(str, shape))]
    found = Scattering(*shape[1:])(image(shape).float()[None])[0]
    assert list(found.shape) == recorded["shape"]
    filters = torch.tensor([1] + [2] * 16 + [3] * 64).repeat(shape[0])  # through how many a coefficient went
    expected = torch.tensor(recorded["values"]) * (3.1415 / math.pi) ** filters  # each divided by 3.1415 there
    torch.testing.assert_close(torch.stack([found[:, u, v] for u, v in PLACES]), expected, rtol=2e-6, atol=5e-7)


def test_double_precision_follows_the_module() -> None:
    x = image((1, 28, 28))[None]
    exact = Scattering(28, 28).double()(x)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(Scattering(28, 28)(x.float()).double(), exact, rtol=1e-5, atol=1e-6)


def filter_powers(filters: Tensor) -> np.ndarray:
    """Return Σ|ψ̂|² over the filters, on average at a frequency and at its mirror image, as a real signal sees it."""
    power = filters.double().square().sum(0).numpy()
    return (power + np.roll(power[::-1, ::-1], (1, 1), (0, 1))) / 2


def coarse_filters(transform: Scattering) -> Tensor:
    rows, columns = transform.fine.shape[1:3]
    quarters = 4 * transform.coarse[..., ::2].reshape(8, 2, 2, rows // 2, columns // 2)
    return quarters.transpose(2, 3).reshape(8, rows, columns)


def average_norm(transform: Scattering, level: int) -> float:
    """Return the squared operator norm of an average, subsampled and cropped."""
    matrices = (getattr(transform, f"average_{name}_{level}").double() for name in ("rows", "columns"))
    return math.prod(float(torch.linalg.matrix_norm(matrix, 2)) ** 2 for matrix in matrices)


def halved_norm(transform: Scattering) -> float:
    """Return the squared norm of all coarse filters with their subsampling, by blocks of aliases."""
    quarters = transform.coarse[..., ::2].double()
    gram = torch.einsum("aqk,apk->kqp", quarters, quarters) * 4  # ‖y‖² has a quarter of the frequencies of ‖x‖²
    return float(torch.linalg.eigvalsh(gram)[:, -1].max())


@pytest.mark.parametrize("size", SIZES)
def test_the_transform_is_non_expansive_in_l2(size: tuple[int, int]) -> None:
    transform = Scattering(*size)
    fine = filter_powers(transform.fine[..., 0])
    spectra = [torch.fft.fft(average_kernel(n)).real.square() for n in fine.shape]
    total = fine + filter_powers(coarse_filters(transform)) + torch.outer(*spectra).numpy()
    assert total.min() > 0.1  # every frequency is seen
    assert total.max() <= 1 + 1e-6  # Littlewood–Paley: on the padded image nothing is amplified
    x = torch.zeros(1, 1, *size, requires_grad=True)
    (repeated,) = torch.autograd.grad(pad(transform, x).sum(), x)
    averages, halved = [average_norm(transform, level) for level in (0, 1)], halved_norm(transform)
    bound = averages[0] + fine.max() * (averages[0] + halved * averages[1]) + halved * averages[1]
    constant = math.sqrt(float(repeated.max()) * bound)
    assert constant <= (1 if min(size) >= 10 else 1.25), f"the proven constant is {constant}"
    grey, random = torch.full((1, 1, *size), 0.5), torch.rand(1, 1, *size)
    reached = max(jacobian_norm(transform, grey), jacobian_norm(transform, random))
    assert 0.2 * constant < reached <= constant  # the bound is one, and not a far one


def average_kernel(size: int) -> Tensor:
    u = torch.arange(-2 * size, 3 * size, dtype=torch.float64).reshape(5, size)
    return torch.exp(-(u**2) / (2 * 1.6**2)).sum(0) / (math.sqrt(2 * math.pi) * 1.6)


def pad(transform: Scattering, x: Tensor) -> Tensor:
    """Return the padded image, which is what the transform filters."""
    rows, columns = (n - m for n, m in zip(transform.fine.shape[1:3], x.shape[2:], strict=True))
    sides = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
    return nn.functional.pad(x, sides, mode="reflect")


def jacobian_norm(transform: Scattering, x: Tensor) -> float:
    """Return the largest singular value of the Jacobian at x, by power iteration."""
    direction = torch.ones_like(x)
    for _ in range(12):
        direction = direction / direction.norm()
        _, forward = torch.autograd.functional.jvp(transform, x, direction)
        _, direction = torch.autograd.functional.vjp(transform, x, forward)
    return math.sqrt(float(direction.norm()))


def test_gradients_are_right_and_finite_at_a_blank_image() -> None:
    transform = Scattering(8, 9).double()
    x = torch.rand(2, 1, 8, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(transform, x, fast_mode=True)
    blank = torch.zeros(1, 1, 28, 28, requires_grad=True)
    (gradient,) = torch.autograd.grad(Scattering(28, 28)(blank).sum(), blank)
    assert bool(torch.isfinite(gradient).all())


def test_an_image_has_the_same_bits_whatever_the_others_hold() -> None:
    transform, generator = Scattering(28, 28), torch.Generator().manual_seed(0)
    x, others = (torch.rand(30, 1, 28, 28, generator=generator) for _ in range(2))
    others[17] = x[17]
    assert torch.equal(transform(x)[17], transform(others)[17])


def test_it_has_no_weights_and_is_not_stored() -> None:
    transform = Scattering(8, 8)
    assert not list(transform.parameters())
    assert not transform.state_dict()
    assert not transform(torch.rand(2, 1, 8, 8)).requires_grad


def test_features_of_order_two_have_half_the_size_and_all_together_that_of_one_a_channel() -> None:
    torch.manual_seed(0)
    features = network("scatter-cnn", (3, 16, 16), 10)[0](torch.rand(8, 3, 16, 16))
    by_channel = features.square().mean(dim=(0, 2, 3)).reshape(3, 81)
    first, second = by_channel[:, :17].mean(), by_channel[:, 17:].mean()
    assert float(second / first) == pytest.approx(0.25, abs=0.05)
    assert float(by_channel.mean()) == pytest.approx(1, abs=0.1)  # a group may hold channels of both


@pytest.mark.parametrize("name", ["scatter-linear", "scatter-cnn"])
def test_under_noise_it_is_certifiable_and_clipped_on_the_fast_path(name: str) -> None:
    torch.manual_seed(0)
    model = NoisyNetwork(network(name, (1, 8, 8), 3), (1, 8, 8), norm="l2", radius_per_std=0.5)
    assert model.input_path == "traced"
    model.set_noise(np.full(64, 1e-12))  # so that a pass for each example is comparable
    engine, x, targets = ClippingEngine(model, 0.1), torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    clipped = engine.clipped_sum(x, targets, losses)
    assert engine.slow_reason is None
    expected = {key: torch.zeros_like(p) for key, p in model.named_parameters()}
    for i in range(4):
        loss = losses(model(x[i : i + 1]), targets[i : i + 1]).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        factor = min(1.0, 0.1 / float(torch.cat([g.flatten() for g in gradients]).norm()))
        for key, gradient in zip(expected, gradients, strict=True):
            expected[key] += factor * gradient
    for key, gradient in clipped.gradients.items():
        torch.testing.assert_close(gradient.float(), expected[key], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_trained_certified_attacked_and_reported_by_the_commands(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = {"steps": 2, "batch_size": 40, "micro_batch": 20, "norm": "l2", "unit": 0.5, "redistribution": "uniform"}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    for words in (
        ("train", "--dataset", "digits", "--method", "secure-sgd", "--network", "scatter-linear", *options, "--out"),
        ("certify", "--draws", "100", "--examples", "3"),
        ("attack", "--attack", "fgsm", "--norm", "l2", "--budget", "0.3", "--examples", "2"),
        ("report",),
    ):
        done = run_here(*words, folder)
        assert done.returncode == 0, done.stderr
    assert (folder / "report.html").exists()
    assert load_run(folder).model.network[1][0].height == 8


def test_interval_bounds_refuse_it_by_name() -> None:
    with pytest.raises(InvalidInputError, match=r"Scattering.* no sound interval bound"):
        layer_graph(network("scatter-linear", (1, 8, 8), 3), (1, 8, 8))


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least 8 each way"):
        Scattering(28, 7)
    with pytest.raises(InvalidInputError, match=r"valid: \[batch, colours, 28, 28\]"):
        Scattering(28, 28)(torch.rand(2, 1, 32, 32))
    with pytest.raises(InvalidInputError, match="at least 8 each way"):
        network("scatter-cnn", (1, 7, 7), 10)
    with pytest.raises(InvalidInputError, match="no hidden layer"):
        network("scatter-linear", (1, 28, 28), 10, hidden=5)
