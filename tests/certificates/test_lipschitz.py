import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import securesgd as ss
from securesgd.certificates.lipschitz.linear_head import read_linear_head
from securesgd.certificates.lipschitz.radius import _GroupLengths, _Margins, lipschitz_radius
from securesgd.certificates.lipschitz.transform_bounds import ScatteringBound, WaveletBound
from securesgd.config import run_config
from securesgd.errors import InvalidInputError
from securesgd.models.scattering import Scattering
from securesgd.models.wavelets import Wavelets
from securesgd.run import load_run
from securesgd.run_training import train_run
from tests.certificates.lipschitz_networks import fitted, flipped

NAMES = ["scatter-linear", "wavelet-linear"]
TRANSFORMS = [(Scattering(8, 8), 1), (Scattering(12, 10), 1), (Wavelets(1, 8, 8), 1), (Wavelets(3, 13, 12), 3)]


def bound_of(transform: nn.Module) -> ScatteringBound | WaveletBound:
    return ScatteringBound(transform) if isinstance(transform, Scattering) else WaveletBound(transform)


def shape_of(transform: nn.Module, colours: int) -> tuple[int, int, int]:
    return (colours, transform.height, transform.width) if isinstance(transform, Scattering) else transform.shape


# Transforms


@pytest.mark.parametrize(("transform", "colours"), TRANSFORMS)
def test_no_pair_of_images_moves_features_more_than_the_bounds(transform, colours):
    transform, shape = copy.deepcopy(transform).double(), shape_of(transform, colours)
    bound, random = bound_of(transform), np.random.default_rng(0)
    reached = [0.0, 0.0]
    for trial in range(60):
        # Around images, in the dark and in glaring light; small changes and large ones; of the corners and of all.
        x = torch.rand(1, *shape, dtype=torch.float64) * random.choice([0, 1, 10])
        with torch.no_grad():
            start = transform(x)
        channels = start.shape[1]
        chosen = random.uniform(size=channels) < random.choice([2 / channels, 0.3, 1])
        g = random.normal(size=start.shape) * chosen[:, None, None]
        q = chosen * random.exponential(size=channels)
        most = float(bound.functional(bound.energies(g))[0]) ** 0.5, float(bound.squares(q)) ** 0.5
        which, size = trial % 2, random.choice([0.01, 1.0])
        d = torch.as_tensor(random.normal(size=x.shape))
        if trial % 3 == 0:
            d[..., 4:, :] = 0
            d[..., 4:] = 0
        for _ in range(12):  # ascent on the sphere
            d = (d / d.norm() * size).requires_grad_()
            change = transform(x + d) - start
            squares = (change.square().sum((0, 2, 3)) * torch.as_tensor(q)).sum()
            value = squares if which else (change * torch.as_tensor(g)).sum()
            (gradient,) = torch.autograd.grad(value, d)
            moved = max(float(value.detach()), 0) ** (0.5 if which else 1)
            assert moved <= most[which] * size * (1 + 1e-9)
            reached[which] = max(reached[which], moved / (most[which] * size + 1e-300))
            d = d.detach() / size + 0.5 * gradient / (gradient.norm() + 1e-30)
    assert reached[0] > 0.1
    assert reached[1] > 0.2


def linear_part(transform: nn.Module, maps, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the matrix of a linear map of images, columns by pixels."""
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return torch.stack([torch.cat([m.flatten() for m in maps(image[None])]) for image in basis], 1).numpy()


@pytest.mark.parametrize("size", [(8, 8), (12, 10)])
def test_the_norm_of_a_scattering_transforms_filters_is_that_of_their_matrix(size):
    """Made again from its own padding and filters: ν is 1 / copies of a pixel, 16 and 4 share it evenly."""
    transform = Scattering(*size).double()
    rows, columns = transform._padded
    padding = (columns - size[1]) // 2, (rows - size[0]) // 2
    pad = (padding[0], columns - size[1] - padding[0], padding[1], rows - size[0] - padding[1])
    where = torch.arange(math.prod(size), dtype=torch.float64).reshape(1, 1, *size)
    source = nn.functional.pad(where, pad, mode="reflect")[0, 0].long()
    nu = 1 / torch.bincount(source.flatten())[source].double()
    coarse = 4 * transform.coarse[..., ::2].reshape(8, 2, 2, rows // 2, columns // 2).transpose(2, 3)
    coarse = coarse.reshape(8, rows, columns)

    def filtered(x: Tensor, filters: Tensor) -> Tensor:
        return torch.fft.ifft2(torch.fft.fft2(x) * filters)

    def maps(x: Tensor) -> list[Tensor]:
        x = nn.functional.pad(x, pad, mode="reflect")[0, 0]
        low = transform.average_rows_0 @ x @ transform.average_columns_0.T
        outputs = nu[4::4, 4::4][: low.shape[0], : low.shape[1]]
        fine = nu.sqrt() * filtered(x, transform.fine[..., 0])
        second = (nu.sqrt() * filtered(x, coarse))[:, ::2, ::2]
        return [4 * low * outputs.sqrt(), torch.view_as_real(fine), 2 * torch.view_as_real(second)]

    bound, matrix = ScatteringBound(transform), linear_part(transform, maps, (1, *size))
    assert bound._norm == pytest.approx(np.linalg.norm(matrix, 2) ** 2, rel=1e-6)

    def second(x: Tensor) -> list[Tensor]:
        return [torch.view_as_real((nu.sqrt() * filtered(x[0, 0] / nu.sqrt(), coarse))[:, ::2, ::2])]

    assert bound._second == pytest.approx(
        np.linalg.norm(linear_part(transform, second, (1, rows, columns)), 2) ** 2, rel=1e-6
    )
    # Energies and norms of the averages, and the norms put together as the module says.
    random = np.random.default_rng(0)
    g = random.normal(size=(81, size[0] // 4, size[1] // 4))
    averages = {
        level: np.kron(*(getattr(transform, f"average_{name}_{level}").numpy() for name in ("rows", "columns")))
        for level in (0, 1)
    }
    weights = {0: nu.numpy().ravel(), 1: nu[::2, ::2].numpy().ravel()}
    energies = bound.energies(g)
    for channel, level in ((1, 0), (8, 0), (9, 1), (80, 1)):
        expected = np.sum((g[channel].ravel() @ averages[level]) ** 2 / weights[level])
        assert energies[channel] == pytest.approx(expected, rel=1e-6)
    average_norms = [np.linalg.norm(averages[level] / np.sqrt(weights[level]), 2) ** 2 for level in (0, 1)]
    low, fine, coarse_energy, driven = energies[0], energies[1:9], energies[9:17], energies[17:].reshape(8, 8)
    total = low / 16 + coarse_energy.sum() / 4 + ((fine**0.5 + (bound._second * driven.sum(1)) ** 0.5) ** 2).sum()
    assert float(bound.functional(energies)) == pytest.approx(bound._norm * total, rel=1e-6)
    q = random.uniform(size=81)
    by_fine = average_norms[0] * q[1:9] + average_norms[1] * bound._second * q[17:].reshape(8, 8).max(1)
    least = nu[4::4, 4::4][: size[0] // 4, : size[1] // 4].min()
    largest = max(by_fine.max(), q[9:17].max() * average_norms[1] / 4, float(q[0] / 16 / least))
    assert float(bound.squares(q)) == pytest.approx(bound._norm * largest, rel=1e-6)


def test_large_images_have_a_bound_without_their_matrix(monkeypatch):
    explicit = ScatteringBound(Scattering(12, 12))
    monkeypatch.setattr("securesgd.certificates.lipschitz.transform_bounds._MOST_PLACES", 0)
    closed, ones = ScatteringBound(Scattering(12, 12)), np.ones(81)
    assert float(explicit.squares(ones)) < float(closed.squares(ones)) < 30 * float(explicit.squares(ones))
    transform = Scattering(12, 12).double()
    for _ in range(5):
        x, d = torch.rand(1, 1, 12, 12, dtype=torch.float64), torch.randn(1, 1, 12, 12, dtype=torch.float64)
        assert float((transform(x + d) - transform(x)).square().sum()) <= float(closed.squares(ones) * d.square().sum())


@pytest.mark.parametrize("shape", [(1, 32, 32), (1, 31, 33)])
def test_norms_of_wavelets_are_nearly_those_of_their_matrices(shape):
    """The rest is the border: the bounds are of images of any size."""
    transform = Wavelets(*shape).double()
    bound, filters = WaveletBound(transform), transform.filters
    of_channel = [filters[[c, 16 + c]] for c in range(16)] + [filters[32:]]

    def at_full(x: Tensor, part: Tensor) -> Tensor:
        return nn.functional.conv2d(x, part, stride=2, padding=3)[..., : 2 * (shape[1] // 4), : 2 * (shape[2] // 4)]

    def at_half(x: Tensor, part: Tensor) -> Tensor:
        return nn.functional.conv2d(nn.functional.avg_pool2d(x, 2), part, stride=2, padding=3)

    def squared_norm(maps) -> float:
        matrix = linear_part(transform, maps, shape)
        return float(np.linalg.eigvalsh(matrix.T @ matrix)[-1])

    for c in (0, 10, 16):
        full = squared_norm(lambda x, c=c: [at_full(x, of_channel[c])])
        half = squared_norm(lambda x, c=c: [at_half(x, of_channel[c])])
        assert 0.8 * bound._full[c] <= full <= bound._full[c]
        assert 0.65 * bound._half[c] <= half <= bound._half[c]

    def maps(x: Tensor) -> list[Tensor]:
        full = [at_full(x, part) / math.sqrt(n) for part, n in zip(of_channel, bound._full, strict=True)]
        return full + [at_half(x, part) / math.sqrt(n) for part, n in zip(of_channel, bound._half, strict=True)]

    share = list(bound._shares).index(1)
    together = 0.7 if shape[1] % 2 == 0 else 0.5  # an odd size has the sum of both norms
    assert together * bound._norms[share] <= squared_norm(maps) <= bound._norms[share]
    assert 0.6 * bound._half_norm <= squared_norm(lambda x: maps(x)[17:]) <= bound._half_norm


def test_bounds_of_wavelets_are_put_together_as_the_module_says():
    bound, random = WaveletBound(Wavelets(3, 12, 12)), np.random.default_rng(0)
    g, q = random.normal(size=(68, 3, 3)), random.uniform(size=68)
    energies = bound.energies(g)
    np.testing.assert_allclose(energies[:17], np.square(g[:17]).sum((1, 2)) / 4, rtol=1e-6)  # an average of 2×2
    np.testing.assert_allclose(energies[17:], np.square(g[17:]).sum((1, 2)), rtol=1e-6)
    full, light, *colours = energies.reshape(4, 17)
    of_light = [
        ((full * bound._full).sum() + (light * bound._half).sum() / share) * norm
        for share, norm in zip(bound._shares, bound._norms, strict=True)
    ]
    of_colours = sum((c * bound._half).sum() * bound._half_norm for c in colours)
    assert float(bound.functional(energies)) == pytest.approx(min(of_light) + of_colours, rel=1e-6)
    full, light, *colours = q.reshape(4, 17)
    of_light = [
        max((full * bound._full).max() / 4, (light * bound._half).max() / share) * norm
        for share, norm in zip(bound._shares, bound._norms, strict=True)
    ]
    largest = max(min(of_light), *((c * bound._half).max() * bound._half_norm for c in colours))
    assert float(bound.squares(q)) == pytest.approx(largest, rel=1e-6)


# Radii


@pytest.mark.parametrize("name", NAMES)
def test_no_attack_changes_a_class_within_its_radius(name):
    network, x = fitted(name)
    result = lipschitz_radius(network, x)
    classes, radius = torch.as_tensor(result.prediction), torch.as_tensor(result.radius)
    assert torch.equal(network(x).argmax(1), classes)
    proven = radius > 0
    assert proven.float().mean() > 0.9
    assert not flipped(network, x[proven], classes[proven], radius[proven], steps=100, starts=3).any()
    multiple = {"scatter-linear": 200, "wavelet-linear": 6}[name]
    assert (
        flipped(network, x[proven], classes[proven], multiple * radius[proven], steps=20, starts=1).float().mean() > 0.5
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_margin_and_its_gradient_are_the_networks_own(name):
    """What the theorem expands: m exactly, and no direction in which the network falls faster than K."""
    network, x = fitted(name)
    double, y = copy.deepcopy(network).double(), network(x).argmax(1)
    head = read_linear_head(double)
    margins = _Margins(head, _GroupLengths(head), x, y.numpy())
    inputs = x.double().requires_grad_()
    scores = double(inputs)
    expected = scores.gather(1, y[:, None]) - scores
    np.testing.assert_allclose(margins.margin, expected.detach().numpy(), atol=1e-9)
    for j in range(10):
        (gradient,) = torch.autograd.grad(expected[:, j].sum(), inputs, retain_graph=True)
        assert (gradient.flatten(1).norm(dim=1).numpy() <= margins.slope[:, j] * (1 + 1e-9) + 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_lower_bound_is_that_of_the_theorem(name):
    """Written again for one rival, group by group; the network is in float64, where rounding is next to nothing."""
    network, x = fitted(name)
    head = read_linear_head(copy.deepcopy(network).double())
    y = network(x).argmax(1).numpy()
    margins = _Margins(head, _GroupLengths(head), x, y)
    groups, n, left_out = head.groups, head.group_size, 0
    of_group = np.repeat(np.arange(groups), len(head.mean) // groups)
    features = head.standardised(x)
    for example, rival, radius in ((0, 1, 0.001), (1, 2, 0.005), (2, 3, 0.02), (3, 5, 0.05), (4, 6, 0.3), (5, 7, 1.0)):
        row, lost = head.weight[y[example]] - head.weight[rival], 0.0
        functional, squares = np.zeros_like(row), np.zeros(len(head.mean))
        by_group = 0.0
        for g in range(groups):
            u, w = features[example, of_group == g], row[of_group == g]
            u, w = u - u.mean(), w - w.mean()
            s = math.sqrt((u**2).sum() + n * head.eps)
            along = (u * w).sum() / s
            across = math.sqrt((w**2).sum() - along**2)
            q = head.inverse_std**2 * (of_group == g)
            t = math.sqrt(float(head.bound.squares(q))) * radius / s
            if t > 0.5:
                turned = math.acos(along / np.linalg.norm(w)) + math.asin(min(t, 1))
                worst = np.linalg.norm(w) * (math.cos(min(turned, math.pi)) if t < 1 else -1)
                lost, left_out = lost + math.sqrt(n) * (along - worst), left_out + 1
                continue
            functional[of_group == g] = math.sqrt(n) / s * (w - along / s * u)
            c = max(along, 0) / (1 + math.sqrt(1 - t**2)) + across / (2 * (1 - t))
            by_group += math.sqrt(n) * c * t**2
            squares += math.sqrt(n) * c / s**2 * q
        functional *= head.inverse_std[:, None]
        functional = functional.reshape(len(head.mean), x.shape[2] // 4, x.shape[3] // 4)
        linear = math.sqrt(float(head.bound.functional(head.bound.energies(functional)))) * radius
        lost += linear + min(by_group, float(head.bound.squares(squares)) * radius**2)
        found = margins.lower_bound(np.full(margins.margin.shape, radius))[example, rival]
        assert found == pytest.approx(margins.margin[example, rival] - lost, abs=1e-4 * lost)
    assert left_out > 0


@pytest.mark.parametrize("name", NAMES)
def test_bounds_of_margins_hold_at_every_distance(name):
    network, x = fitted(name)
    head = read_linear_head(network)
    y = network(x).argmax(1)
    margins = _Margins(head, _GroupLengths(head), x, y.numpy())
    generator = torch.Generator().manual_seed(0)
    for radius in (1e-4, 0.01, 0.03, 0.1, 0.5, 3.0):
        lower = margins.lower_bound(np.full(margins.margin.shape, radius))
        for _ in range(10):
            d = torch.randn(x.shape, generator=generator)
            scores = network(x + d / d.flatten(1).norm(dim=1)[:, None, None, None] * radius)
            assert ((scores.gather(1, y[:, None]) - scores).numpy() >= np.where(margins.is_rival, lower, -np.inf)).all()


def test_a_margin_twice_as_large_has_a_larger_radius_and_a_row_twice_as_long_a_smaller_one():
    network, x = fitted("wavelet-linear")
    before, changed = lipschitz_radius(network, x), copy.deepcopy(network)
    changed[2].weight *= 2
    changed[2].bias *= 2
    after = lipschitz_radius(changed, x)
    np.testing.assert_allclose(after.radius, before.radius, rtol=1e-3)  # scores twice as large mean nothing
    changed[2].bias *= 0
    changed[2].bias[0] = 1000.0
    assert (lipschitz_radius(changed, x).prediction == 0).all()
    assert lipschitz_radius(changed, x).radius.min() > before.radius.max()


def test_features_in_float32_are_far_inside_what_is_assumed():
    for transform, colours in ((Scattering(28, 28), 1), (Wavelets(1, 28, 28), 1), (Wavelets(3, 32, 32), 3)):
        bound = bound_of(transform)
        x = torch.rand(8, *shape_of(transform, colours), generator=torch.Generator().manual_seed(0))
        x[4:] *= torch.tensor([1e-3, 1e-3, 1e3, 1e3])[:, None, None, None]
        off = (transform(x).double() - copy.deepcopy(transform).double()(x.double())).flatten(1).norm(dim=1)
        assert bool((100 * off <= bound.rounding * 2.0**-24 * x.double().flatten(1).norm(dim=1) + 1e-8).all())


@pytest.mark.parametrize("name", NAMES)
def test_scores_in_float32_are_off_by_less_than_is_allowed(name):
    """At radius 0 the bound is the exact margin less rounding; also where groups hardly vary about a large mean."""
    network, x = fitted(name)
    head, y = read_linear_head(network), network(x).argmax(1)
    for inputs in (x, 0.01 * x + 5, 1e-4 * x, 1e3 * x, x + 1e3):
        margins = _Margins(head, _GroupLengths(head), inputs, y.numpy())
        allowed = margins.margin - margins.lower_bound(np.zeros_like(margins.margin))
        scores = network(inputs).double()
        off = np.abs((scores.gather(1, y[:, None]) - scores).numpy() - margins.margin)
        assert (off <= np.where(margins.is_rival, allowed / 5, np.inf)).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_rounding_takes_off_is_what_the_module_says(name):
    """Written again for one rival at radius 0, group by group."""
    network, x = fitted(name)
    head, u, y, rival = read_linear_head(network), 2.0**-24, int(network(x[:1]).argmax()), 3
    margins = _Margins(head, _GroupLengths(head), x[:1], np.array([y]))
    n, features, row = head.group_size, head.standardised(x[:1])[0], head.weight[y] - head.weight[rival]
    of_group = np.repeat(np.arange(head.groups), len(head.mean) // head.groups)
    rho = head.bound.rounding * u * float(x[0].double().norm())
    lost, numbers = 0.0, n * head.groups
    for g in range(head.groups):
        own = of_group == g
        size, centred = np.linalg.norm(features[own]), features[own] - features[own].mean()
        s, w = math.sqrt((centred**2).sum() + n * head.eps), row[own] - row[own].mean()
        eta = np.abs(head.inverse_std[own]).max() * rho + 8 * u * size
        along, t = (w * centred).sum() / s, eta / s
        across = math.sqrt((w**2).sum() - along**2)
        c = max(along, 0) / (1 + math.sqrt(1 - t**2)) + across / (2 * (1 - t))
        lost += math.sqrt(n) * (across * eta / s + c * t**2)
        ratio = (size + eta) / (s - eta)
        zeta = math.sqrt(n) * (4 * n * u * ratio**2 + 2 * n * u * ratio)
        lost += np.linalg.norm(row[own]) * zeta
        both = np.linalg.norm(head.weight[y][own]) + np.linalg.norm(head.weight[rival][own])
        lost += numbers * u * both * math.sqrt(n)
    found = float((margins.margin - margins.lower_bound(np.zeros_like(margins.margin)))[0, rival])
    assert lost <= found <= 1.3 * lost + 1e-6


def test_a_group_that_hardly_varies_about_a_large_mean_is_not_known():
    network, x = fitted("scatter-linear")
    head, y = read_linear_head(network), np.zeros(5, dtype=np.int64)
    margins = _Margins(head, _GroupLengths(head), 0.01 * x[:5] + 100, y)
    assert (margins.lower_bound(np.zeros_like(margins.margin)) == -math.inf).all()


def test_rounding_takes_the_radius_away_where_scores_count_in_steps():
    network = copy.deepcopy(fitted("wavelet-linear")[0])
    x = fitted("wavelet-linear")[1]
    network[2].bias += 2.0**21  # steps of a quarter
    coarse = lipschitz_radius(network, x)
    fine = lipschitz_radius(copy.deepcopy(network).double(), x)
    assert (coarse.radius == 0).all()
    assert (fine.radius > 0).mean() > 0.9


def test_type_and_mode_change_little(monkeypatch):
    network, x = fitted("scatter-linear")
    single = lipschitz_radius(network, x)
    double = lipschitz_radius(copy.deepcopy(network).double(), x.double())
    assert (double.radius >= single.radius).all()
    training = copy.deepcopy(network).train()
    np.testing.assert_array_equal(lipschitz_radius(training, x).radius, single.radius)
    assert training.training
    monkeypatch.setattr("securesgd.certificates.lipschitz.radius._TOGETHER", 1)
    np.testing.assert_allclose(lipschitz_radius(network, x[:3]).radius, single.radius[:3], rtol=1e-5)


def test_colours_have_radii_too():
    torch.manual_seed(0)
    x = torch.rand(3, 3, 16, 16)
    network = ss.network("wavelet-linear", (3, 16, 16), 4)
    network[2].bias.data[1] = 20.0
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    result = lipschitz_radius(network, x)
    classes, radius = torch.as_tensor(result.prediction), torch.as_tensor(result.radius)
    assert (radius > 0).all()
    assert not flipped(network, x, classes, radius, steps=20, starts=1).any()


def test_weights_of_frequencies_have_no_rule():
    with pytest.raises(InvalidInputError, match="layer 4 of its front end is FrequencyWeights"):
        lipschitz_radius(ss.network("scatter-linear", (3, 16, 16), 4), torch.rand(3, 3, 16, 16))


def test_a_trained_run_has_radii(tmp_path):
    config = run_config("digits", "dpsgd", network="wavelet-linear", steps=2, batch_size=40)
    train_run(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    result = ss.lipschitz_radius(run.model, run.data.test_inputs[:5])
    assert isinstance(result, ss.LipschitzRadii)
    assert result.radius.shape == result.prediction.shape == (5,)
    assert (result.prediction == run.model(run.data.test_inputs[:5]).argmax(1).numpy()).all()


def test_no_inputs_have_no_radii():
    network, x = fitted("wavelet-linear")
    assert lipschitz_radius(network, x[:0]).radius.shape == (0,)
    with pytest.raises(InvalidInputError, match=r"valid: floating-point numbers of shape \[examples, 1, 8, 8\]"):
        lipschitz_radius(network, x[:, :, :4])
