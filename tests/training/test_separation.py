"""No example may depend on another: models that mix a batch, or carry examples into later steps, are refused."""

import pytest

from securesgd.errors import InvalidInputError
from securesgd.training.clipping import ClippingEngine
from tests.training.clipping_reference import cross_entropy
from tests.training.mixing_models import KEEPING, LOSSES, MIXING, Mixer, batch, nothing

REFUSED = "depends on other examples"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("mix", MIXING)
def test_a_model_that_mixes_examples_is_refused(mix: str, copies: int, dropout: float) -> None:
    engine = ClippingEngine(Mixer(MIXING[mix], dropout), 1.0)
    with pytest.raises(InvalidInputError, match=REFUSED):
        engine.clipped_sum(*batch(), cross_entropy, copies=copies)


@pytest.mark.parametrize("micro_batch", [None, 1, 5])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("keep", KEEPING)
def test_a_model_that_carries_examples_into_later_steps_is_refused(
    keep: str, dropout: float, micro_batch: int | None
) -> None:
    engine = ClippingEngine(Mixer(KEEPING[keep], dropout), 1.0)
    with pytest.raises(InvalidInputError, match="later steps"):
        engine.clipped_sum(*batch(), cross_entropy, micro_batch=micro_batch)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_looks_at_other_examples_is_refused(loss: str) -> None:
    with pytest.raises(InvalidInputError, match=REFUSED):
        ClippingEngine(Mixer(nothing), 1.0).clipped_sum(*batch(), LOSSES[loss])
