"""Models whose examples cannot be kept apart are refused by name, with what to use instead."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.precision import keeps_rows_apart
from securesgd.errors import InvalidInputError
from tests.clipping.clipping_reference import cross_entropy, images, vectors


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


REFUSED = {
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "'1' .BatchNorm1d.*GroupNorm"),
    "batch norm inside": (
        lambda: nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))), "'0.1' .BatchNorm2d.*GroupNorm"),
    "batch norm without parameters": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "'1'"),
    "sync batch norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)), "SyncBatchNorm"),
    "instance norm with statistics": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True)),
        "track_running_stats=False"),
    "embedding that rescales": (lambda: nn.Sequential(nn.Embedding(5, 4, max_norm=1.0)), "max_norm=None"),
    "embedding scaled by counts": (lambda: nn.Embedding(5, 4, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4)), "run the model once"),
    "old weight norm": (
        lambda: nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4))), "parametrizations.weight_norm"),
    "old spectral norm": (
        lambda: nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(4, 4))), "parametrizations.spectral_norm"),
    "nothing to train": (lambda: nn.Sequential(nn.Linear(4, 4)).requires_grad_(False), "no trainable parameter"),
    "compiled": (lambda: torch.compile(nn.Sequential(nn.Linear(4, 4))), "is compiled.*passed to torch.compile"),
    "compiled inside": (lambda: nn.Sequential(torch.compile(nn.Linear(4, 4))), "'0' .*is compiled"),
    "compiled in place": (lambda: compiled_in_place(nn.Sequential(nn.Linear(4, 4))), "'the model' .*is compiled"),
    "half precision": (lambda: nn.Linear(4, 4).to(torch.bfloat16), "float32 or float64"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_refused_by_name(case: str) -> None:
    make_model, message = REFUSED[case]
    with pytest.raises(InvalidInputError, match=message):
        ClippingEngine(make_model(), max_grad_norm=1.0)


def test_instance_norm_without_statistics_is_fine() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(64, 4)
    ).double()
    targets = torch.zeros(7, dtype=torch.long)
    result = ClippingEngine(model, 1.0).clipped_sum(images(1, 6), targets, cross_entropy)
    assert result.norms.min() > 0


def test_a_batch_norm_added_later_is_refused() -> None:
    model = nn.Sequential(nn.Linear(12, 4))
    engine = ClippingEngine(model, 1.0)
    model.append(nn.BatchNorm1d(4))
    with pytest.raises(InvalidInputError, match="GroupNorm"):
        engine.clipped_sum(torch.randn(7, 12), torch.zeros(7, dtype=torch.long), cross_entropy)


class Centred(nn.Module):
    """Hidden mixing: subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_hidden_mixing_of_examples_is_refused(place: int) -> None:
    layers: list[nn.Module] = [nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4)]
    layers.insert(place, Centred())
    engine = ClippingEngine(nn.Sequential(*layers).double(), 1.0)
    with pytest.raises(InvalidInputError, match="depends on other examples"):
        engine.clipped_sum(vectors(12), torch.zeros(7, dtype=torch.long), cross_entropy)


def test_a_loss_that_mixes_examples_is_refused() -> None:
    def relative(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(outputs, targets)
        return losses / losses.sum()

    engine = ClippingEngine(nn.Linear(12, 4).double(), 1.0)
    with pytest.raises(InvalidInputError, match="depends on other examples"):
        engine.clipped_sum(vectors(12), torch.zeros(7, dtype=torch.long), relative)


def test_a_processor_whose_bfloat16_products_mix_examples_is_refused(monkeypatch):
    def last_tile_of_the_next_row(rows, weight):
        beyond = torch.roll(rows, -1, 0).sum(1, keepdim=True)  # times the 0 behind the end of the weights
        return rows @ weight.T + 0 * beyond

    keeps_rows_apart.cache_clear()
    monkeypatch.setattr(functional, "linear", last_tile_of_the_next_row)
    try:
        with pytest.raises(InvalidInputError, match="an example that is not finite change others on this cpu; valid"):
            ClippingEngine(nn.Linear(4, 2), 1.0, "bfloat16")
        monkeypatch.setattr(functional, "linear", lambda rows, weight: rows.float() @ weight.float().T)
        keeps_rows_apart.cache_clear()
        ClippingEngine(nn.Linear(4, 2), 1.0, "bfloat16")
    finally:
        keeps_rows_apart.cache_clear()
