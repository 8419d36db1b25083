"""The table of the presets against published numbers: what it takes from rows, and what it says without them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.data.load import load_data
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.reproduce.leaderboard import LEADERBOARD, PUBLISHED, certified_shares, leaderboard_lines


def row(seed, unit, share, **changes):
    values = {
        "dataset": "mnist", "method": "secure-sgd", "norm": "l2", "unit": unit, "epsilon": 2.9, "delta": 1e-5,
        "seed": seed, "public_dataset": None, "examples": 1000.0, "draws": 10000.0, "test_images": 10000.0,
        "l2_0.5": share, "l2_1": 0.1, "average_certified_radius": 1.0,
    }  # fmt: skip
    return values | changes


def line(rows, words):
    (chosen,) = [line for line in leaderboard_lines(rows) if line[0] == words]
    return chosen


def test_the_best_noise_is_shown_with_its_mean_and_range():
    rows = [*(row(seed, 0.5, 0.9 + 0.01 * seed) for seed in range(3)), *(row(seed, 1.0, 0.8) for seed in range(3))]
    words, published, ours, noise, budget, count = line(rows, "MNIST, proven within l2 0.5")
    assert published == "0.933, DP-CERT"
    assert (ours, noise, budget) == ("0.910 (0.900–0.920)", "0.5", "2.9, 1e-05")
    assert count == "1,000 images, 10,000 draws, 3 seeds"
    assert line(rows[:1], words)[2] == "0.900"


def test_first_weights_from_public_data_have_a_line_of_their_own():
    words = "MNIST, proven within l2 0.5"
    rows = [row(0, 0.5, 0.9), row(0, 0.5, 0.95, public_dataset="digits")]
    assert line(rows, words)[2] == "0.900"
    assert line(rows, f"{words}, first weights from digits")[2] == "0.950"
    assert not [cells for cells in leaderboard_lines(rows[:1]) if "first weights" in cells[0]]


def test_accuracy_is_of_the_whole_test_set():
    dpsgd = row(0, None, None, method="dpsgd", norm=None, test_accuracy=0.98)
    assert line([dpsgd], "MNIST, accuracy")[1:] == [
        "0.987, Tramèr & Boneh 2021", "0.980", "none", "2.9, 1e-05", "10,000 images, 1 seed",
    ]  # fmt: skip


@pytest.mark.parametrize("key", PUBLISHED)
def test_every_published_number_has_a_line_and_a_cell_that_measures_it(key):
    lines = leaderboard_lines([])
    assert all(cells[2] == "not measured yet" for cells in lines)
    for value in PUBLISHED[key].values():
        assert any(cells[1].startswith(f"{value:.3f}, ") for cells in lines)
    cells = LEADERBOARD.cells("standard")
    assert {cell["seed"] for cell in cells if (cell["dataset"], cell["method"], cell["norm"]) == key} == {0, 1, 2}


def test_leaving_out_wrong_classes_changes_nothing():
    """Only images whose selected class is right are drawn in full; the shares are those of certifying every image."""
    torch.manual_seed(0)
    digits = load_data("digits")
    model = NoisyNetwork(network("linear", (1, 8, 8), 10), (1, 8, 8), norm="l2", radius_per_std=0.3).eval()
    (head,) = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    with torch.no_grad():
        for label in range(10):
            mean = digits.train_inputs[:][digits.train_targets == label].mean(dim=0).flatten()
            head.weight[label], head.bias[label] = mean, -mean.square().sum() / 2
    cell = {"norm": "l2", "draws": 300, "examples": 40}
    shares = certified_shares(SimpleNamespace(model=model, data=digits), cell)
    whole = certify(model, digits.test_inputs[:40], CertifySettings(norm="l2", draws=300, failure_prob=0.001, seed=0))
    right = (whole.prediction == digits.test_targets[:40].numpy()) & ~whole.abstained
    assert 0.2 < right.mean() < 1
    assert shares["smoothed_accuracy"] == right.mean()
    assert shares["l2_0.25"] == (right & (whole.radius["tight"] >= 0.25)).mean() > 0
    assert shares["average_certified_radius"] == pytest.approx(np.mean(right * whole.radius["tight"]), rel=1e-12)
