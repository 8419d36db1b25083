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


@pytest.mark.parametrize("name", ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"])
def test_a_variable_that_lowers_the_precision_of_convolutions_is_named(name, monkeypatch):
    """oneDNN reads it, and no switch of torch shows it: convolutions of float32 are then off by 0.2 %."""
    model = nn.Linear(4, 3)
    noisy = NoisyNetwork(nn.Sequential(nn.Linear(4, 3)), (4,), place="first-layer").eval()
    for value in ("BF16", "any", "tf32"):
        monkeypatch.setenv(name, value)
        with pytest.raises(InvalidInputError, match=f"the environment variable {name} is '{value}'"):
            require_full_precision("cpu")
    with pytest.raises(InvalidInputError, match=name):
        ClippingEngine(model, 1.0).clipped_sum(torch.rand(5, 4), torch.arange(5) % 3, per_example_cross_entropy)
    with pytest.raises(InvalidInputError, match=name):
        certify(noisy, torch.rand(1, 4))
    for value in ("", "strict", "STRICT"):
        monkeypatch.setenv(name, value)
        require_full_precision("cpu")


def test_a_variable_of_one_device_says_nothing_of_another(monkeypatch):
    monkeypatch.setattr("securesgd.runtime.machine._PRECISION_SETTINGS", {})  # torch's own, by which cuda has TF32
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    require_full_precision("cpu")
    with pytest.raises(InvalidInputError, match="NVIDIA_TF32_OVERRIDE is '1'"):
        require_full_precision("cuda")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    require_full_precision("cuda")
