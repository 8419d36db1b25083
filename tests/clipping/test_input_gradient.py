"""The input gradient of a convolution with few channels, beside autograd's own."""

import pytest
import torch
from torch import nn

from securesgd.clipping.rules.input_gradient import with_fast_input_gradient


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(1, 5, 3), nn.Conv2d(3, 4, (5, 2), padding=(2, 1)), nn.Conv2d(2, 6, 4, padding=3, bias=False)],
    ids=["plain", "oblong", "padded"],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_is_autograd_s(layer, layout):
    torch.manual_seed(0)
    layer = layer.double()
    x = torch.randn(3, layer.in_channels, 7, 8, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    output = layer(x)
    other = with_fast_input_gradient(layer, x, output)
    assert other is not output
    assert torch.equal(other, output)
    g = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, x, g, retain_graph=True)
    (found,) = torch.autograd.grad(other, x, g)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 4, 3, stride=2), nn.Conv2d(2, 4, 3, dilation=2), nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding="same"), nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Conv2d(4, 4, 3),
    ],
)  # fmt: skip
def test_other_convolutions_are_left_to_autograd(layer):
    x = torch.randn(2, layer.in_channels, 7, 7, requires_grad=True)
    output = layer(x)
    assert with_fast_input_gradient(layer, x, output) is output


def test_an_input_without_gradient_is_left_alone():
    layer, x = nn.Conv2d(1, 4, 3), torch.randn(2, 1, 7, 7)
    output = layer(x)
    assert with_fast_input_gradient(layer, x, output) is output
