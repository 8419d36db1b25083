"""An audit on another device: what is built is there, whatever the device; `meta` has shapes and no numbers."""

import pytest
import torch

from securesgd.audit.canaries import AuditedNetwork, CanaryCounts
from securesgd.audit.claim import Claim
from securesgd.audit.measure import audit_config, audited_training
from securesgd.config import run_config
from securesgd.errors import InvalidInputError

CLAIM = Claim(epsilon=8.0, delta=1e-4, sampling_rate=0.1, noise_multiplier=1.0, steps=2)


@pytest.mark.parametrize("method", ["dpsgd", "secure-sgd", "dp-ibp"])
def test_network_and_canaries_are_on_the_device_and_its_outputs_too(method):
    meta = torch.device("meta")
    config = run_config("digits", method)
    training = audited_training(config, CLAIM, input_shape=(1, 8, 8), classes=10, device=meta)
    assert {parameter.device for parameter in training.network.parameters()} == {meta}
    model = AuditedNetwork(training.network, (1, 8, 8), CanaryCounts(weights=20, biases=10, data=10))
    assert {parameter.device for parameter in model.parameters()} == {meta}
    assert training.inputs.device.type == "cpu", "batches are moved, not the data"


def test_a_device_that_is_not_there_is_refused_before_anything_is_read():
    with pytest.raises(InvalidInputError, match="device is 'cuda:77'; valid here: cpu"):
        audit_config(run_config("no/such/file.npz", "dpsgd"), device="cuda:77")
