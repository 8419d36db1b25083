"""A loss that asks the noisy copies of one example to agree, since votes for one class are what makes a radius.

The copies of an example go through the model in one step anyway. What is added to the loss is a function of their
outputs alone, so that a step costs about what it costs without it. It couples copies of the same example, never two
examples: the gradient that is clipped is that of the example's whole loss, and neither sensitivity nor epsilon changes.
"""

__all__ = ["consistent_cross_entropy", "joint_loss"]

import math
from functools import partial

from torch import Tensor
from torch.nn.functional import log_softmax

from securesgd.clipping.losses import Loss
from securesgd.errors import InvalidInputError
from securesgd.training.settings import TrainingSettings
from securesgd.training.step_loss import per_example_cross_entropy


def consistent_cross_entropy(outputs: Tensor, targets: Tensor, *, copies: int, consistency: float) -> Tensor:
    """Return CE(f(x_c), y) + λ·KL(p̄ ‖ p_c) for each row x_c, with λ = `consistency`; p_c are the row's probabilities.

    p̄ is the mean of the probabilities of the copies of one example, which are `copies` rows in a row. The mean over
    them is the loss of the example: mean_c CE(f(x_c), y) + λ·mean_c KL(p̄ ‖ p_c). The gradient goes through p̄, too.
    Assumes: there are `copies` rows of each example.
    Reference: Jeong & Shin 2020 (arXiv:2006.04062), the consistency term of their loss. The entropy of p̄, which they
    add with a fixed factor of 0.5, is left out: λ is what trades accuracy for radius, and λ = 0 is the cross-entropy.
    """
    log_p = log_softmax(outputs, dim=1).view(len(outputs) // copies, copies, outputs.shape[1])
    log_mean = log_p.logsumexp(dim=1, keepdim=True) - math.log(copies)
    divergence = (log_mean.exp() * (log_mean - log_p)).sum(dim=2).flatten()
    return per_example_cross_entropy(outputs, targets) + consistency * divergence


def joint_loss(loss: Loss, settings: TrainingSettings) -> Loss:
    """Return what steps minimise: `loss`, the same object without `consistency`, else the cross-entropy with it.

    Raises: InvalidInputError if there is a `consistency` and `loss` is not the cross-entropy.
    """
    if not settings.consistency:
        return loss
    if loss is not per_example_cross_entropy:
        raise InvalidInputError(
            f"consistency is {settings.consistency:g}, but the loss is not the cross-entropy; valid: consistency = 0, "
            "or no loss given"
        )
    return partial(consistent_cross_entropy, copies=settings.copies, consistency=settings.consistency)
