"""Attacks on what the privacy documents promise: one record that decides for all, ends a run, or is not bounded."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import Dataset

from securesgd.clipping.engine import ClippedSum, ClippingEngine
from securesgd.clipping.rules import convolution
from securesgd.errors import InvalidInputError
from securesgd.models.noise_layer import ScaleLearning
from securesgd.models.noisy import NoisyNetwork
from securesgd.privacy.mechanism import HeterogeneousGaussianMechanism
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.key_stream import KeyStream
from securesgd.training.loop import train
from securesgd.training.settings import TrainingSettings
from tests.command_line import run_here

Loss = Callable[[Tensor, Tensor], Tensor]


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1000 * cross_entropy(outputs, targets, reduction="none")


def change_of(engine: Callable[[], ClippingEngine], inputs: Tensor, targets: Tensor, loss: Loss, row: int) -> float:
    """Return what the example in `row` changes, against a null record in its place, in units of the sensitivity."""

    def run(batch: Tensor) -> ClippedSum:
        return engine().clipped_sum(batch, targets, loss)

    nobody = inputs.clone()
    nobody[row] = float("nan")
    with_it, without = run(inputs).gradients, run(nobody).gradients
    moved = torch.stack([(with_it[name] - without[name]).norm() for name in with_it]).norm().item()
    return moved / engine().sensitivity


class Waves(nn.Module):
    """Examples are separate here; for large inputs another rounding of the same sum gives another cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.gain = nn.Bilinear(16, 16, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        waves: Tensor = torch.cos(self.products(x, x)) * self.gain
        return waves


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_one_example_does_not_tip_the_majority_that_decides_how_the_others_are_run() -> None:
    """It changed the sum by 4.4 C: with it, half of the batch was run one by one, without it left out."""
    torch.manual_seed(0)
    model = nn.Sequential(Waves(), nn.Linear(8, 3))
    inputs, targets = torch.rand(64, 16), torch.randint(3, (64,))
    inputs[:32] *= 1e5
    inputs[63] *= 1e5
    assert change_of(lambda: ClippingEngine(model, 1.0), inputs, targets, losses, row=63) <= 1


def test_no_record_passes_for_mixing_by_overflowing_under_other_random_numbers() -> None:
    """Where dropout spares its huge value the example has a finite loss, in a replaced row it has none: 0 · inf."""
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        inputs, targets = torch.rand(6, 8), torch.randint(3, (6,))
        inputs[3] = 0
        inputs[3, 2] = 3e38
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ClippingEngine(model, 1.0).clipped_sum(inputs, targets, losses)


def test_float64_squares_that_vanish_do_not_leave_a_gradient_unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of 1e-163 have squares of 0: the joint product of a convolution gave 109 times the sensitivity."""
    called = []
    joint = convolution._joint_gradient
    monkeypatch.setattr(convolution, "_joint_gradient", lambda *a: called.append(1) or joint(*a))
    torch.manual_seed(0)
    model = nn.Conv2d(64, 64, 3, padding=1, bias=False).double()
    inputs = torch.rand(4, 64, 4, 4, dtype=torch.float64) * 1e-163

    def steep(outputs: Tensor, _: Tensor) -> Tensor:
        return outputs.flatten(1).sum(dim=1) * 1e152

    assert change_of(lambda: ClippingEngine(model, 1e-10), inputs, torch.zeros(4), steep, row=0) <= 1
    assert called


def test_a_limit_whose_sums_overflow_is_refused() -> None:
    model = nn.Linear(1, 1, bias=False)
    with pytest.raises(InvalidInputError, match="from 1e-10 to 1e"):
        ClippingEngine(model, 1e38)
    engine = ClippingEngine(model, 1e30)
    total = engine.clipped_sum(torch.full((300, 1), 1e36), torch.zeros(300), lambda outputs, _: outputs[:, 0])
    assert total.gradients["weight"].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sensitivity", [1e-44, 1e-36, 1e-10, 1e30, 1e-240, 1e240])
def test_zeros_cannot_be_told_from_other_values_by_the_grid(dtype: torch.dtype, sensitivity: float) -> None:
    """With a grid too fine for the type 0 became NaN and everything else infinite."""
    release = GridRelease(sensitivity=sensitivity, noise_multiplier=1.0, size=3)
    values = torch.tensor([0.0, sensitivity / 2, -sensitivity / 2], dtype=torch.float64).to(dtype)
    released = release.release([values], KeyStream(bytes(16)), divisor=sensitivity)[0]
    assert released.isfinite().all() or (dtype == torch.float32 and sensitivity > 1e38)
    assert not released.isnan().any()


@pytest.mark.parametrize("sensitivity", [1e-320, 1e-300, 1e300])
def test_a_mechanism_at_the_ends_of_float64_refuses_instead_of_telling(sensitivity: float) -> None:
    """For answers (0, 1e-300) it released (NaN, inf)."""
    mechanism = HeterogeneousGaussianMechanism(epsilon=1.0, delta=1e-5, sensitivity=sensitivity, r=[0.5, 0.5])
    with pytest.raises(InvalidInputError, match="standard deviation"):
        mechanism.release([0.0, sensitivity])


def test_the_statement_of_a_release_claims_no_larger_distance_than_it_covers() -> None:
    """Printed with six digits, 0.99999951 was a claim for 1."""
    mechanism = HeterogeneousGaussianMechanism.for_l2_sensitivity(0.99999951, [0.5, 0.5], epsilon=1.0, delta=1e-5)
    assert "at most 0.99999951 in l2" in mechanism.release([0.0, 0.0]).statement
    linear = HeterogeneousGaussianMechanism.for_linear_query(
        np.eye(2), "l2", distance=0.99999951, epsilon=1, delta=1e-5
    )
    assert "at most 0.99999951 apart" in linear.release([0.0, 0.0]).statement


class OneOdd(Dataset[Any]):
    """Vectors of four, the last of 1001 a record of its own: the only one in the second thousand that is read."""

    def __init__(self, odd: Tensor, count: int = 1001) -> None:
        self.count, self.odd, self.rest = count, odd, torch.rand(count, 4)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return (self.odd if i == self.count - 1 else self.rest[i]), i % 2


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(10, 4), nn.Embedding(50, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).expand_as(x)
        return self.last((self.words(x) + self.places(places)).mean(dim=1))  # type: ignore[no-any-return]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.EmbeddingBag(10, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x))  # type: ignore[no-any-return]


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(one_hot(x, 10).float().mean(dim=1))  # type: ignore[no-any-return]


SETTINGS = TrainingSettings(noise_multiplier=1.0, delta=1e-5, batch_size=100, steps=2)


@pytest.mark.parametrize("count", [1001, 300])
@pytest.mark.parametrize("odd", [torch.rand(5), torch.rand(4).double()], ids=["shape", "type"])
def test_an_example_of_another_shape_or_type_is_an_error_before_the_run(
    odd: Tensor, count: int, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=f"example {count - 1} .*one shape and type"):
        train(nn.Linear(4, 2), OneOdd(odd, count), SETTINGS, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", [TwoTables, Bag, OneHot])
def test_a_token_that_the_model_does_not_take_is_an_error_before_the_run(
    model: Callable[[], nn.Module], tmp_path: Path
) -> None:
    tokens, targets = torch.randint(10, (250, 6)), torch.randint(2, (250,))
    tokens[207, 0] = 20
    with pytest.raises(InvalidInputError, match="does not take examples 200 to 249"):
        train(model(), (tokens, targets), SETTINGS, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_number_of_examples_that_is_not_public_is_in_no_file_of_a_run(tmp_path: Path) -> None:
    """`model.json` and the report had it."""
    count, random = 1237, np.random.default_rng(0)
    parts = {"train": count, "test": 20}
    arrays = {f"x_{name}": random.integers(0, 256, (n, 8, 8), dtype=np.uint8) for name, n in parts.items()}
    arrays |= {f"y_{name}": np.arange(n) % 2 for name, n in parts.items()}
    np.savez(tmp_path / "data.npz", **arrays)
    run = tmp_path / "run"
    choices = ["steps=1", "batch_size=50", "population=5000", "accountant=rdp"]
    settings = [part for choice in choices for part in ("--set", choice)]
    source = ("--dataset", tmp_path / "data.npz", "--method", "dpsgd", "--epsilon", "2")
    done = run_here("train", *source, "--out", run, *settings)
    assert done.returncode == 0, done.stderr
    run_here("report", run)
    told = [path.name for path in run.iterdir() if path.suffix in (".json", ".jsonl", ".toml", ".html", ".md")
            and re.search(r"\b1,?237\b", path.read_text())]  # fmt: skip
    assert (run / "report.html").exists()
    assert told == []


@pytest.mark.parametrize("share", [1.0, 1e6, 1e30])
def test_no_share_of_the_norm_lets_one_example_move_the_log_scales_further(share: float) -> None:
    """Their gradient is multiplied before the clipping; after it, the same share would be a share of the guarantee."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    learning = ScaleLearning(grid=2, steps=10, share=share, rate=1e3)
    model = NoisyNetwork(layers, (1, 8, 8), radius_per_std=0.1, redistribution="learned", learning=learning).train()
    model.noisy.noise.std.zero_()  # the same in both passes
    inputs, targets = torch.rand(6, 1, 8, 8), torch.randint(3, (6,))
    inputs[2] *= 1e4
    for _ in range(3):  # coarse grid and fine
        assert change_of(lambda: ClippingEngine(model, 0.1), inputs, targets, losses, row=2) <= 1
        for _ in range(4):
            model.project()


def test_what_learned_the_scales_has_no_part_in_the_certificate() -> None:
    """Whoever edits those buffers in a file changes nothing that the network computes, and not its Δ."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    learning = ScaleLearning(grid=2, steps=10, share=100.0)
    model = NoisyNetwork(layers, (1, 8, 8), radius_per_std=0.1, redistribution="learned", learning=learning).eval()
    x = torch.rand(2, 1, 8, 8)
    before, delta = model.noisy.clean(x), model.sensitivity("linf").upper
    state = model.state_dict()
    state["noisy.scale.previous"] = state["noisy.scale.previous"] * 1e3
    state["noisy.scale.steps_done"] = torch.tensor(10**6)
    model.load_state_dict(state)
    assert torch.equal(model.noisy.clean(x), before)
    assert model.sensitivity("linf").upper == delta
