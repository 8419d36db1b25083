"""Every switch by which torch computes float32 in a shorter type is noticed, by clipping and by certification."""

import pytest
import torch
from torch import nn

from securesgd.certificates.certify import certify
from securesgd.clipping.engine import ClippingEngine
from securesgd.errors import InvalidInputError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.machine import require_full_precision
from securesgd.training.loop import per_example_cross_entropy

MKLDNN = torch.backends.mkldnn


@pytest.mark.parametrize(
    ("place", "name"),
    [(MKLDNN, "mkldnn.fp32_precision"), (MKLDNN.conv, "mkldnn.conv.fp32_precision"),
     (MKLDNN.matmul, "mkldnn.matmul.fp32_precision"), (torch.backends, "fp32_precision")],
)  # fmt: skip
def test_a_lowered_switch_is_named(place, name):
    model = nn.Linear(4, 3)
    noisy = NoisyNetwork(nn.Sequential(nn.Linear(4, 3)), (4,), place="first-layer").eval()
    before = place.fp32_precision
    try:
        place.fp32_precision = "bf16"
        with pytest.raises(InvalidInputError, match="fp32_precision is 'bf16'"):
            require_full_precision("cpu")
        with pytest.raises(InvalidInputError, match="fp32_precision is 'bf16'"):
            ClippingEngine(model, 1.0).clipped_sum(torch.rand(5, 4), torch.arange(5) % 3, per_example_cross_entropy)
        with pytest.raises(InvalidInputError, match="fp32_precision is 'bf16'"):
            certify(noisy, torch.rand(1, 4))
    finally:
        place.fp32_precision = before
    require_full_precision("cpu")
