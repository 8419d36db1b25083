"""The ways to measure a convolution's gradients agree, and stay exact where float32 cancels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from securesgd.clipping.rules import convolution, forms, linear, patches
from securesgd.clipping.rules.forms import Deferred, Kept, LayerCall, Scratch
from securesgd.clipping.rules.geometry import Geometry
from securesgd.clipping.rules.patches import kept_gradients, measured_gradients
from securesgd.clipping.rules.pixel_gram import gram_squares


def slow_gradients(layer: nn.Conv2d, x: Tensor, g: Tensor, copies: int) -> Tensor:
    rows = [torch.autograd.grad(layer(x[i : i + 1]), layer.weight, g[i : i + 1])[0].flatten() for i in range(len(x))]
    return torch.stack(rows).view(len(x) // copies, copies, -1).sum(dim=1).view(-1, *layer.weight.shape)


pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
small = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kernel=pairs, stride=small, dilation=small, padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    size=st.tuples(st.integers(10, 13), st.integers(10, 13)), channels=st.sampled_from([1, 3, 16]),
    maps=st.integers(1, 3), groups=st.integers(1, 2), copies=st.integers(1, 2), same=st.booleans(),
)  # fmt: skip
def test_all_forms_agree_on_any_geometry(kernel, stride, dilation, padding, size, channels, maps, groups, copies, same):  # type: ignore[no-untyped-def]
    layer = nn.Conv2d(
        groups * channels, groups * maps, kernel, stride=(1, 1) if same else stride, dilation=dilation,
        padding="same" if same else padding, groups=groups, bias=False,
    ).double()  # fmt: skip
    x = torch.randn(3 * copies, groups * channels, *size, dtype=torch.float64)
    g = torch.randn_like(layer(x))
    expected = slow_gradients(layer, x, g, copies)
    squares = expected.flatten(1).square().sum(dim=1)
    geometry, padded = Geometry.from_layer(layer, x)
    kept = kept_gradients(padded, g, geometry, copies, chunk=2)
    torch.testing.assert_close(kept.gradients(), expected)
    torch.testing.assert_close(kept.squared_norms(), squares)
    torch.testing.assert_close(measured_gradients(padded, g, geometry, copies, chunk=2), squares)
    torch.testing.assert_close(gram_squares(padded, g, geometry, copies)[0], squares)
    factors = torch.rand(3, dtype=torch.float64)
    weighted = (expected * factors.view(-1, 1, 1, 1, 1)).sum(dim=0)
    torch.testing.assert_close(kept.weighted_sum(factors), weighted)
    seen = LayerCall(layer, (x,), None, g, 3, copies, frozenset({"weight"}), frozenset(), Scratch())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "KEPT_BYTES", 0)
        deferred = convolution.convolution_gradients(seen)["weight"]
    assert isinstance(deferred, Deferred)
    torch.testing.assert_close(deferred.weighted_sum(factors), weighted)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kernel=pairs, dilation=small, size=st.tuples(st.integers(1, 7), st.integers(1, 7)), channels=st.integers(1, 4),
    maps=st.integers(1, 3), groups=st.integers(1, 2), copies=st.integers(1, 2), narrow=st.booleans(),
)  # fmt: skip
def test_products_tap_by_tap_agree_on_any_geometry(kernel, dilation, size, channels, maps, groups, copies, narrow):  # type: ignore[no-untyped-def]
    """Also where a tap lies beside the whole image; memory of an earlier step is full of NaN; g is not written to."""
    layer = nn.Conv2d(
        groups * channels, groups * maps, kernel, dilation=dilation, padding="same", groups=groups, bias=False
    ).double()
    x = torch.randn(3 * copies, groups * channels, *size, dtype=torch.float64)
    g = torch.randn_like(layer(x))
    if narrow:
        x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))
    before, scratch = g.clone(), Scratch()
    scratch.empty((10_000,), g).fill_(torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches, "NARROW", 0)
        patch.setattr(patches, "MANY", 0)
        patch.setattr(patches, "FEW_TAPS", 99)
        kept = kept_gradients(x, g, Geometry.from_layer(layer, x)[0], copies, 2, scratch)
    assert len(kept.raw) == kernel[0] * kernel[1]
    torch.testing.assert_close(kept.gradients(), slow_gradients(layer, x, g, copies))
    assert torch.equal(g, before)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_tap_by_tap_an_example_that_is_not_finite_leaves_the_others_their_bits(value):
    """A shift ends in the next row of an image, never in the next image."""
    layer = nn.Conv2d(16, 4, 3, padding=1, bias=False)
    x, g = torch.randn(5, 16, 12, 12), torch.randn(5, 4, 12, 12)
    geometry, _ = Geometry.from_layer(layer, x)
    clean = kept_gradients(x, g, geometry, 1, 16)
    assert len(clean.raw) == 9
    x[2, :, 0, 0] = g[2, :, -1, -1] = value
    x[2, :, -1, -1] = value
    odd = kept_gradients(x, g, geometry, 1, 16)
    assert not odd.squared_norms()[2].isfinite()
    others = [0, 1, 3, 4]
    assert torch.equal(odd.gradients()[others], clean.gradients()[others])


@pytest.mark.parametrize("at_once", [2**23, 5000, 1])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("kernel", "padding", "size"), [(3, 1, (12, 14)), ((5, 3), (2, 0), (13, 12)), (2, 0, (13, 13))]
)
def test_images_as_groups_of_one_convolution_have_their_own_gradients(  # type: ignore[no-untyped-def]
    kernel, padding, size, layout, copies, at_once, monkeypatch
):
    monkeypatch.setattr(patches, "_processor_has_long_vectors", lambda: True)
    monkeypatch.setattr(patches, "JOINT_NUMBERS", at_once)
    layer = nn.Conv2d(16, 32, kernel, padding=padding, bias=False)
    x = torch.randn(6 * copies, 16, *size).contiguous(memory_format=layout)
    g = torch.randn_like(layer(x))
    geometry, _ = Geometry.from_layer(layer, x)
    assert patches._Layout.choose(x, g, geometry).kind == "groups"
    expected = slow_gradients(layer, x, g, copies)
    for scratch in (None, Scratch()):
        kept = kept_gradients(x, g, geometry, copies, 4, scratch)
        torch.testing.assert_close(kept.gradients(), expected, rtol=1e-4, atol=1e-3)
        factors = torch.rand(6, dtype=torch.float64)
        total = torch.einsum("i,i...->...", factors.float(), expected)
        torch.testing.assert_close(kept.weighted_sum(factors).float(), total, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e38, 1e-40])
def test_images_as_groups_leave_each_other_their_bits(value: float) -> None:
    """The engine assumes it: a group is computed from its own channels alone."""
    x, g = torch.randn(7, 16, 12, 12), torch.randn(7, 32, 12, 12)
    geometry, _ = Geometry.from_layer(nn.Conv2d(16, 32, 3, padding=1), x)
    before = patches._by_groups(x, g, geometry)
    for others in (x, g):
        others[[0, 2, 5]] = value
    after = patches._by_groups(x, g, geometry)
    own = [1, 3, 4, 6]
    assert torch.equal(before[:, own], after[:, own])
    assert not torch.equal(before[:, 0], after[:, 0])


def call_of(layer: nn.Module, x: Tensor, g: Tensor) -> LayerCall:
    return LayerCall(layer, (x,), None, g, len(x), 1, frozenset({"weight"}), frozenset(), Scratch())


@pytest.mark.parametrize(
    ("channels", "maps", "size", "kernel", "form"),
    [(1, 32, 28, 5, Kept), (3, 128, 32, 3, Kept), (32, 64, 14, 5, Kept), (128, 128, 16, 5, Kept),
     (128, 256, 8, 5, Deferred)],
)  # fmt: skip
def test_the_paper_layers_take_the_form_that_was_measured_faster(
    channels: int, maps: int, size: int, kernel: int, form: type
) -> None:
    layer = nn.Conv2d(channels, maps, kernel, padding=kernel // 2, bias=False)
    x = torch.rand(4, channels, size, size)
    found = convolution.convolution_gradients(call_of(layer, x, torch.randn(4, maps, size, size)))
    assert isinstance(found["weight"], form)


def test_gradients_too_large_to_keep_are_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Conv2d(3, 8, 3, bias=False), torch.rand(4, 3, 9, 9)
    g = torch.randn(4, 8, 7, 7)
    kept = convolution.convolution_gradients(call_of(layer, x, g))["weight"]
    monkeypatch.setattr(forms, "KEPT_BYTES", 0)
    deferred = convolution.convolution_gradients(call_of(layer, x, g))["weight"]
    assert (type(kept), type(deferred)) == (Kept, Deferred)
    torch.testing.assert_close(kept.squared_norms(), deferred.squared_norms())
    factors = torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(kept.weighted_sum(factors), deferred.weighted_sum(factors))


@pytest.mark.parametrize("flatness", [1.0, 0.1, 1e-2, 1e-3])
def test_float32_norms_survive_cancellation(flatness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly flat images under zero-sum output gradients: the Gram form alone loses all digits here."""
    monkeypatch.setattr(forms, "KEPT_BYTES", 0)
    torch.manual_seed(0)
    layer = nn.Conv2d(128, 128, 5, bias=False)
    x = (1 + flatness * torch.rand(4, 128, 10, 10)) * torch.rand(4, 128, 1, 1)
    g = torch.randn(4, 128, 6, 6)
    g -= g.mean(dim=(2, 3), keepdim=True)
    found = convolution.convolution_gradients(call_of(layer, x, g))["weight"]
    assert isinstance(found, Deferred)
    exact = slow_gradients(layer.double(), x.double(), g.double(), 1).flatten(1).norm(dim=1)
    torch.testing.assert_close(found.squared_norms().sqrt(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("flatness", [1.0, 1e-2, 1e-3])
def test_float32_sequence_norms_survive_cancellation(flatness: float) -> None:
    torch.manual_seed(0)
    a = (1 + flatness * torch.rand(4, 6, 300)) * torch.rand(4, 1, 300)
    g = torch.randn(4, 6, 200)
    g -= g.mean(dim=1, keepdim=True)
    exact = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).norm(dim=1)
    torch.testing.assert_close(linear._gram_squares(a, g).double().sqrt(), exact, rtol=1e-5, atol=0)


def test_a_layer_subclass_with_its_own_forward_is_not_taken_for_its_parent() -> None:
    from securesgd.clipping.engine import ClippingEngine
    from tests.clipping.clipping_reference import cross_entropy, distance, reference

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, 2 * self.weight**3, self.bias)

    model = nn.Sequential(Doubled(12, 4)).double()
    inputs, targets = torch.randn(7, 12, dtype=torch.float64), torch.randint(4, (7,))
    expected, _ = reference(model, inputs, targets, 1.0)
    assert distance(ClippingEngine(model, 1.0).clipped_sum(inputs, targets, cross_entropy).gradients, expected) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_over_several_images_give_the_sum_and_keep_odd_images_apart(dtype: torch.dtype) -> None:
    """Few positions: four images to a product. One whose positions cancel, a huge one and one of NaN are made alone."""
    torch.manual_seed(0)
    layer = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False).to(dtype)
    x = torch.randn(18, 32, 8, 8, dtype=dtype)
    x[3], x[7] = x[3] * 1e12, x[7].mean()
    g = torch.randn(18, 64, 4, 4, dtype=dtype)
    g[7] -= g[7].mean(dim=(1, 2), keepdim=True)
    expected = slow_gradients(layer.double(), x.double(), g.double(), 1)
    x[11] = float("nan")
    geometry, padded = Geometry.from_layer(layer, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "CHUNK_NUMBERS", 2 * 9 * 32 * 64)
        found = convolution._joint_gradient(call_of(layer.to(dtype), x, g), geometry, padded, 4)
        factors = torch.rand(18, dtype=torch.float64)
        factors[[3, 11]] = torch.tensor([1e-12, 0.0], dtype=torch.float64)
        total = found.weighted_sum(factors).double()
    expected[11] = 0
    sizes = expected.flatten(1).norm(dim=1)
    torch.testing.assert_close(found.squared_norms().sqrt()[:11], sizes[:11], rtol=1e-6, atol=0)
    error = (total - (expected * factors.view(-1, 1, 1, 1, 1)).sum(dim=0)).norm() / (factors * sizes).max()
    assert error <= (1e-5 if dtype == torch.float32 else 1e-12)


def test_an_image_whose_positions_cancel_does_not_enter_a_joint_product() -> None:
    """Its terms, 1e9 times its gradient, would wipe out those of the other images of its product."""
    layer, x, g = nn.Conv2d(16, 16, 1, bias=False), torch.zeros(8, 16, 1, 3), torch.ones(8, 16, 1, 3)
    x[..., 2] = 1
    x[2, :, :, 0], x[2, :, :, 1] = 1e9, -1e9
    geometry, padded = Geometry.from_layer(layer, x)
    found = convolution._joint_gradient(call_of(layer, x, g), geometry, padded, 4)
    total = found.weighted_sum(torch.ones(8, dtype=torch.float64)).double()
    assert total.min() >= 7 * (1 - 1e-6)  # all others are there; its own gradient may be lost to cancellation
    assert total.max() <= 8 * (1 + 1e-6)


@pytest.mark.parametrize(("positions", "joint"), [(1, 16), (16, 8), (64, 4), (144, 2), (256, 1)])
def test_joint_products_stay_within_the_slack(positions: int, joint: int) -> None:
    assert forms.joint_examples(positions, torch.float32) == joint
    unit = 2.0**-24
    error = (joint * positions + 3) * joint * forms.SPREAD * unit + 160 * (160 / joint + 4) * unit
    assert 2 * error <= forms.rounding_slack(torch.float32) or joint == 1
