"""r from a public data set whose images have another size than the model's inputs."""

import json

import numpy as np
import pytest
import torch

from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.data.public_images import public_examples
from securesgd.errors import InvalidInputError
from securesgd.models.redistribution import Redistribution
from securesgd.privacy import Ledger
from securesgd.run import load_run
from securesgd.run_training import train_run

PUBLIC = {"redistribution": "public", "public_dataset": "digits", "direction": "inverse", "r_step": 0.5}


@pytest.fixture
def larger_digits(tmp_path):
    """A private data set of 28×28 images."""
    digits = load_data("digits")
    images = torch.nn.functional.interpolate(digits.train_inputs[:300], size=(28, 28)).numpy()
    path = tmp_path / "larger.npz"
    labels = digits.train_targets[:300].numpy()
    np.savez(path, x_train=images, y_train=labels, x_test=images[:50], y_test=labels[:50])
    return path


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 5, 9), (1, 8, 8)])
def test_images_are_resized_and_stay_images(shape):
    own = load_data("digits")
    inputs, targets = public_examples("digits", shape, 10)
    assert inputs.shape == (len(own.train_inputs), *shape)
    assert bool((inputs >= 0).all() & (inputs <= 1).all())
    assert torch.equal(targets, own.train_targets)
    means = [t.mean(dim=(1, 2, 3)) for t in (inputs, own.train_inputs)]
    assert torch.corrcoef(torch.stack(means))[0, 1] > 0.9  # the same pictures


def test_a_run_on_larger_images_takes_r_from_them(larger_digits, tmp_path):
    changes = {"batch_size": 60, "steps": 4, "copies": 1, "accountant": "rdp", "noise_seed": 1, "network": "tanh-cnn"}
    config = run_config(str(larger_digits), "secure-sgd", **changes | PUBLIC)
    run = train_run(config, tmp_path / "run")
    record = Redistribution.load(tmp_path / "run" / "redistribution.json")
    assert record.shape == (1, 28, 28)
    assert record.details == {"direction": "inverse", "beta": 1.0, "public_dataset": "digits"}
    assert max(record.r) > 1.5 * min(record.r)
    with Ledger.open(tmp_path / "run" / "ledger.jsonl") as ledger:  # nothing of it is private
        assert {type(event).__name__ for event in ledger.events} == {"SampledGaussianSteps"}
    assert load_run(tmp_path / "run").check().passed
    text = json.loads((tmp_path / "run" / "redistribution.json").read_text())
    text["details"]["public_dataset"] = "mnist"
    (tmp_path / "run" / "redistribution.json").write_text(json.dumps(text))
    assert not run.check().passed


@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [((20,), 10, "images for images"), ((1, 28, 28), 4, "10 classes; valid: at most the 4")],
)
def test_what_does_not_fit_is_refused(shape, classes, message):
    with pytest.raises(InvalidInputError, match=message):
        public_examples("digits", shape, classes)


def test_it_is_refused_before_the_run(tmp_path):
    with pytest.raises(InvalidInputError, match="no-such-digits"):
        train_run(run_config("digits", "secure-sgd", **PUBLIC | {"public_dataset": "no-such-digits"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
