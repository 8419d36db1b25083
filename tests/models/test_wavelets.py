import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securesgd.errors import InvalidInputError
from securesgd.models.networks import network
from securesgd.models.standardise import Standardise, made_up_images
from securesgd.models.wavelets import WAVELET_CHANNELS, Wavelets

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 29, 34)]


def filters(wavelets: Wavelets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = wavelets.filters[:, 0].double().numpy()
    return values[:16], values[16:32], values[32]


@pytest.mark.parametrize("shape", SHAPES)
def test_features_have_a_quarter_of_the_size(shape: tuple[int, int, int]) -> None:
    wavelets = Wavelets(*shape)
    features = wavelets(torch.rand(2, *shape))
    assert list(features.shape) == [2, WAVELET_CHANNELS * (1 + shape[0]), shape[1] // 4, shape[2] // 4]
    assert not list(wavelets.parameters())


def slow_moduli(wavelets: Wavelets, plane: np.ndarray) -> np.ndarray:
    """Return the channels of one plane by their definition, pixel by pixel."""
    padded, (even, odd, low) = np.pad(plane, 3), filters(wavelets)
    places = [range(0, size - 7, 2) for size in padded.shape]
    maps = np.zeros((WAVELET_CHANNELS, len(places[0]), len(places[1])))
    for i, row in enumerate(places[0]):
        for j, column in enumerate(places[1]):
            patch = padded[row : row + 8, column : column + 8]
            maps[:16, i, j] = np.hypot((even * patch).sum((1, 2)), (odd * patch).sum((1, 2)))
            maps[16, i, j] = (low * patch).sum()
    return maps


def test_moduli_are_those_of_the_definition() -> None:
    wavelets, image = Wavelets(1, 12, 12), np.random.default_rng(0).uniform(size=(12, 12))
    maps = slow_moduli(wavelets, image)[:, :6, :6].reshape(WAVELET_CHANNELS, 3, 2, 3, 2).mean(axis=(2, 4))
    found = wavelets(torch.as_tensor(image, dtype=torch.float32)[None, None])[0]
    np.testing.assert_allclose(found[:WAVELET_CHANNELS], maps, rtol=1e-5, atol=1e-5)
    half = slow_moduli(wavelets, image.reshape(6, 2, 6, 2).mean(axis=(1, 3)))
    np.testing.assert_allclose(found[WAVELET_CHANNELS:], half, rtol=1e-5, atol=1e-5)


def test_colours_are_seen_at_half_the_size_and_grey_images_have_none() -> None:
    wavelets, grey = Wavelets(3, 32, 32), torch.rand(1, 1, 32, 32).expand(1, 3, 32, 32)
    features = wavelets(grey)[0]
    colours = features[2 * WAVELET_CHANNELS :]
    assert colours.abs().max() < 1e-4 < features[:16].mean()
    image = np.random.default_rng(0).uniform(size=(3, 32, 32))
    small = image.reshape(3, 16, 2, 16, 2).mean(axis=(2, 4))
    expected = slow_moduli(wavelets, (small[0] - small[2]) / np.sqrt(2))
    found = wavelets(torch.as_tensor(image, dtype=torch.float32)[None])[0, 2 * WAVELET_CHANNELS : 3 * WAVELET_CHANNELS]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_waves_have_mean_0_and_equal_norms() -> None:
    even, odd, low = filters(Wavelets(1, 28, 28))
    np.testing.assert_allclose(even.sum((1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(odd.sum((1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose((even**2 + odd**2).sum((1, 2)), 2, rtol=1e-6)
    np.testing.assert_allclose((low**2).sum(), 1, rtol=1e-6)


def test_the_gradient_is_finite_where_a_modulus_is_0() -> None:
    x = torch.zeros(1, 1, 28, 28, requires_grad=True)
    Wavelets(1, 28, 28)(x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("shape", [(2, 28, 28), (1, 7, 28), (3, 28, 7)])
def test_other_images_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInputError, match="1 or 3 colours, at least 8 pixels each way"):
        Wavelets(*shape)


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"inputs have shape \[1, 3, 28, 28\]; valid: \[batch, 1, 28, 28\]"):
        Wavelets(1, 28, 28)(torch.zeros(1, 3, 28, 28))


def test_made_up_images_are_always_the_same_and_fall_with_the_frequency() -> None:
    images = made_up_images((3, 32, 32))
    assert np.array_equal(images, made_up_images((3, 32, 32)))
    assert images.shape == (128, 3, 32, 32)
    assert 0 <= images.min() < images.max() <= 1
    power = (np.abs(np.fft.fft2(images - images.mean(axis=(2, 3), keepdims=True))) ** 2).mean(axis=(0, 1))
    assert 8 < power[1, 0] / power[4, 0] < 32  # 1/f² in power is 16
    assert len(made_up_images((3, 512, 512))) == 2  # bounded memory


def identity(x: Tensor) -> Tensor:
    return x


def test_standardised_channels_have_mean_0_and_variance_1_on_made_up_images() -> None:
    shape = (3, 32, 32)
    wavelets = Wavelets(*shape)
    standardise = Standardise(wavelets, shape)
    values = standardise(wavelets(torch.as_tensor(made_up_images(shape), dtype=torch.float32)))
    torch.testing.assert_close(values.mean(dim=(0, 2, 3)), torch.zeros(68), rtol=0, atol=1e-4)
    std = values.std(dim=(0, 2, 3))
    assert float(std.max()) <= 1 + 1e-4
    assert float(std.min()) > 0.8
    assert not list(standardise.parameters())


def test_what_standardises_is_kept_with_the_weights_and_reads_no_input() -> None:
    shape = (1, 28, 28)
    first, second = network("wavelet-linear", shape, 10), network("wavelet-linear", shape, 10)
    names = {name for name in first.state_dict() if "mean" in name or "inverse_std" in name}
    assert len(names) == 2
    for name in names:
        assert torch.equal(first.state_dict()[name], second.state_dict()[name])
    before = {name: value.clone() for name, value in first.state_dict().items()}
    first.train()
    first(torch.rand(4, *shape))
    assert all(torch.equal(before[name], value) for name, value in first.state_dict().items())


def test_a_channel_that_never_moves_stays_finite() -> None:
    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.zeros_like(x)], dim=1)

    assert bool(Standardise(Flat(), (1, 8, 8))(torch.rand(2, 2, 8, 8)).isfinite().all())


def test_photographs_are_nearly_standard() -> None:
    """The point of made-up images: statistics of photographs, here of sklearn's own two, are near theirs."""
    from sklearn.datasets import load_sample_images

    shape = (3, 32, 32)
    pieces = [
        torch.as_tensor(photo[: 32 * (len(photo) // 32), : 32 * (photo.shape[1] // 32)] / 255, dtype=torch.float32)
        .permute(2, 0, 1)
        .unfold(1, 32, 32)
        .unfold(2, 32, 32)
        .permute(1, 2, 0, 3, 4)
        .reshape(-1, 3, 32, 32)
        for photo in load_sample_images().images
    ]
    wavelets = Wavelets(*shape)
    values = Standardise(wavelets, shape)(wavelets(torch.cat(pieces)))
    std = values.std(dim=(0, 2, 3))
    assert 0.5 < float(std.quantile(0.1)) < float(std.quantile(0.9)) < 2.0
    assert float(values.mean(dim=(0, 2, 3)).abs().median()) < 1.0
