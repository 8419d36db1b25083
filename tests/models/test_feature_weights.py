"""Fixed weights of features: what they do to a map, and that the head of a network for photographs has them."""

import numpy as np
import pytest
import torch
from scipy.fft import dctn

from securesgd.errors import InvalidInputError
from securesgd.models.feature_weights import ChannelWeights, FrequencyWeights
from securesgd.models.networks import network


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, -1.0], [1.0, np.nan]])
def test_weights_of_channels_are_positive(weights: list[float]) -> None:
    with pytest.raises(InvalidInputError, match="valid: positive numbers"):
        ChannelWeights(np.array(weights))


@pytest.mark.parametrize("size", [(8, 8), (2, 5)])
def test_coefficients_are_those_of_the_cosine_transform_by_the_formula(size: tuple[int, int]) -> None:
    x = torch.rand(3, 4, *size, generator=torch.Generator().manual_seed(0))
    ratio = FrequencyWeights(*size)(x).numpy() / dctn(x.numpy(), axes=(2, 3), norm="ortho")
    u, v = np.arange(size[0])[:, None], np.arange(size[1])
    expected = (1 + (u**2 + v**2) / 4) ** -0.5
    np.testing.assert_allclose(ratio, np.broadcast_to(expected, ratio.shape), rtol=1e-3)


def test_a_linear_head_for_photographs_sees_all_coefficients_and_the_finest_least() -> None:
    torch.manual_seed(0)
    features = network("scatter-linear", (3, 32, 32), 10)[0](torch.rand(8, 3, 32, 32))
    assert features.shape == (8, 243, 8, 8)
    power = features.square().mean(dim=(0, 1))
    assert power[0, 1] > 2 * power[7, 7] > 0


@pytest.mark.parametrize(("name", "colours"), [("scatter-cnn", 3), ("scatter-linear", 1)])
def test_other_heads_see_the_maps_themselves(name: str, colours: int) -> None:
    front_end = network(name, (colours, 16, 16), 10)[0]
    assert not any(isinstance(layer, FrequencyWeights) for layer in front_end)
