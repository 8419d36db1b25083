"""The number of examples that go through the model at once when the user does not say."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from securesgd.clipping.batch import Batch
from securesgd.clipping.engine import ClippingEngine
from securesgd.clipping.micro_batch import ACTIVATION_BYTES, FEWEST, examples_at_once
from securesgd.models.networks import network


def _loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def test_counts_what_autograd_keeps_once_and_no_parameters() -> None:
    layer = nn.Linear(1000, 1000)
    x = torch.rand(2, 1000, requires_grad=True)

    def losses() -> torch.Tensor:
        h = layer(x)  # keeps x
        return (h.exp() * h.exp()).sum(dim=1)  # two results of exp, each kept by exp and by the product

    assert examples_at_once(losses, 2, layer.parameters()) == ACTIVATION_BYTES // (3 * 4000)


def test_pieces_are_nearly_equal_and_the_sum_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model = network("mnist-cnn", (1, 28, 28), 10)
    x, y = torch.rand(450, 1, 28, 28), torch.randint(10, (450,))
    engine = ClippingEngine(model, 0.5)
    sizes: list[int] = []
    clip = engine._clip

    def watched(batch: Batch, *more: Any) -> Any:
        sizes.append(len(batch))
        return clip(batch, *more)

    engine._clip = watched  # type: ignore[method-assign]
    pieces = engine.clipped_sum(x, y, _loss)
    assert len(sizes) > 1
    assert max(sizes) - min(sizes) <= len(sizes)
    whole = engine.clipped_sum(x, y, _loss, micro_batch=450)
    for name, gradient in whole.gradients.items():
        assert (gradient - pieces.gradients[name]).norm() <= 1e-5 * gradient.norm()
    torch.testing.assert_close(whole.norms, pieces.norms, rtol=1e-5, atol=0)


def test_measuring_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    before = torch.get_rng_state()
    engine = ClippingEngine(model, 1.0)
    batch = torch.rand(2 * FEWEST, 4), torch.randint(3, (2 * FEWEST,))
    torch.set_rng_state(before)
    engine.clipped_sum(*batch, _loss)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    ClippingEngine(model, 1.0).clipped_sum(*batch, _loss, micro_batch=2 * FEWEST)
    assert torch.equal(after, torch.get_rng_state())


def test_small_batches_and_models_that_refuse_synthetic_examples_are_not_cut() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not bool((x == 1).all()):
                raise ValueError("only ones")
            return self.layer(x)

    engine = ClippingEngine(Picky(), 1.0)
    count = 3 * FEWEST
    result = engine.clipped_sum(torch.ones(count, 4), torch.zeros(count, dtype=torch.long), _loss)
    assert len(result.norms) == count


@pytest.mark.slow
def test_memory_does_not_grow_with_the_batch() -> None:
    """Peak memory of a step of the paper's MNIST network at batch 4,096 is within 15 % of that at 1,024."""
    program = (
        "import resource, sys, torch\n"
        "from torch.nn.functional import cross_entropy\n"
        "from securesgd.clipping.engine import ClippingEngine\n"
        "from securesgd.models.networks import network\n"
        "n = int(sys.argv[1])\n"
        "engine = ClippingEngine(network('mnist-cnn', (1, 28, 28), 10), 1.0)\n"
        "x, y = torch.zeros(1, 1, 28, 28).expand(n, 1, 28, 28), torch.zeros(n, dtype=torch.long)\n"
        "engine.clipped_sum(x, y, lambda o, t: cross_entropy(o, t, reduction='none'))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = [
        int(subprocess.run([sys.executable, "-c", program, str(n)], capture_output=True, text=True, check=True).stdout)
        for n in (1024, 4096)
    ]
    assert peaks[1] <= 1.15 * peaks[0], peaks
