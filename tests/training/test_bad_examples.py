"""Labels and tokens that cannot be are refused; a record that is not finite contributes nothing and ends nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.errors import InvalidInputError
from securesgd.training.loop import train

from .conftest import small_data, small_model, small_settings


@pytest.mark.parametrize("bad", [-1, 3, 250])
def test_a_label_outside_the_models_classes_is_refused_before_anything_is_written(tmp_path, bad):
    """In the run it would be an error at the first step whose sample has the record."""
    inputs, targets = torch.rand(40, 4), torch.randint(3, (40,))
    targets[31] = bad
    settings = small_settings()
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    state = torch.get_rng_state()
    for data in ((inputs, targets), Listed([(x, y) for x, y in zip(inputs, targets, strict=True)])):
        with pytest.raises(InvalidInputError, match=f"label of example 31 is {bad}: valid are 0 to 2"):
            train(model, data, settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_token_outside_the_vocabulary_is_refused_before_anything_is_written(tmp_path):
    tokens, targets = torch.randint(5, (40, 3)), torch.randint(3, (40,))
    tokens[12, 1] = 5
    settings = small_settings()
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(InvalidInputError, match="token of example 12 is 5: valid are 0 to 4"):
        train(model, (tokens, targets), settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e20, 1e38])
@pytest.mark.filterwarnings("error")
def test_no_record_ends_the_run(tmp_path, value):
    """An error would tell that the record was there: without it the run finishes."""
    torch.manual_seed(0)
    rows = [(torch.rand(4), int(y)) for y in torch.randint(3, (40,))]
    rows[5] = (torch.full((4,), value), 1)
    settings = small_settings(steps=6, batch_size=20)
    model, losses = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), []
    train(model, Listed(rows), settings, tmp_path / "run", on_step=lambda report: losses.append(report.loss))
    assert all(p.isfinite().all() for p in model.parameters())
    assert all(np.isfinite(losses))


class Listed:
    """A map-style dataset of pairs."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def test_weights_that_are_not_finite_end_the_run_in_words(tmp_path):
    """Released weights may be looked at; data may not, so that without this a diverged run goes on as pure noise."""
    settings = small_settings(learning_rate=1e30, max_grad_norm=1e9, checkpoint_steps=4)
    with pytest.raises(InvalidInputError, match=r"not finite after step \d+; learning_rate 1e\+30 is too large"):
        train(small_model(), small_data(), settings, tmp_path / "run")
