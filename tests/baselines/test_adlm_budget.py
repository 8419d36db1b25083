"""AdLM's numbers: the authors' scales to the digit, beta, and the order-2 loss."""

import math

import numpy as np
import pytest

from securesgd.baselines.adlm.budget import (
    affine_sensitivity,
    budget_shares,
    input_scales,
    loss_scale,
    loss_sensitivity,
    normalised_relevance,
    relevance_scale,
    taylor_losses,
)


def test_the_published_scales_for_mnist():
    """Epsilon = 0.3 as .075 + .075 + .15, batches of 1,800 of 60,000 images."""
    assert affine_sensitivity(1, 14 * 14, 5 * 5) == 9_800
    assert loss_sensitivity(25, 10) == 1_812.5
    shares = np.array([0.5, 1.0, 2.0])
    assert input_scales(shares, 9_800, 0.075, 1800) == pytest.approx(9_800 / (0.075 * 1800) / shares)
    assert input_scales(shares, 9_800, 0.075, 1800)[1] == pytest.approx(72.6, abs=0.01)
    assert loss_scale(1_812.5, 0.15, 1800) == pytest.approx(6.71, abs=0.005)
    assert relevance_scale(784, 0.075, 60_000) == pytest.approx(0.348, abs=0.0005)


def test_the_published_scales_for_cifar10():
    """Epsilon = 2.5 as .25 + 1.5 + .75; the authors' relevance noise is that of .5, twice its share."""
    assert affine_sensitivity(3, 10 * 10, 3 * 3) == 5_400
    assert loss_sensitivity(30, 10) == 2_550
    assert relevance_scale(400, 0.5, 50_000) == pytest.approx(0.032)
    assert relevance_scale(400, 0.25, 50_000) == pytest.approx(0.064)
    assert input_scales(np.ones(1), 5_400, 1.5, 7200)[0] == pytest.approx(0.5)


def test_shares_have_mean_one_and_grow_with_relevance():
    relevance = np.array([[0.1, 0.2], [0.3, 0.4]])
    shares = budget_shares(relevance)
    assert shares.mean() == pytest.approx(1.0)
    assert shares / shares[0, 0] == pytest.approx(relevance / 0.1)


def test_negative_relevance_counts_as_the_floor():
    shares = budget_shares(np.array([-3.0, 1.0, 1.0, -0.1]))
    assert shares == pytest.approx([2e-5, 2.0, 2.0, 2e-5], rel=1e-4)
    tiny = budget_shares(np.array([-1.0, 1e5]))
    assert tiny.min() == 1e-5
    assert np.isfinite(input_scales(tiny, 9_800, 0.075, 1800)).all()


def test_relevance_is_scaled_to_the_unit_interval():
    mean = np.array([-2.0, 0.0, 2.0])
    assert normalised_relevance(mean, power=4) == pytest.approx([0, 0.5**4, 1])
    assert normalised_relevance(mean, offset=0.3) == pytest.approx([0.3, 0.8, 1])
    assert normalised_relevance(np.full(3, 0.7)) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_the_loss_is_the_order_two_expansion_of_sigmoid_cross_entropy(y):
    """Exact at 0, and off by z⁴/192 to leading order: the third-order coefficient is 0 as well."""
    for z in (-0.3, -0.01, 0.0, 0.02, 0.3):
        exact = math.log1p(math.exp(-z)) * y + math.log1p(math.exp(z)) * (1 - y)
        published = max(z, 0) - z * y + math.log(2) - abs(z) / 2 + z**2 / 8
        assert taylor_losses(z, y) == pytest.approx(published, abs=1e-15)
        assert abs(taylor_losses(z, y) - exact) <= z**4 / 192 * 1.001 + 1e-15
