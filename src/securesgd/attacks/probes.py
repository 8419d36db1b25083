"""Looking at the model itself, on a few examples: are its gradients of any use to an attack, and does effort pay?"""

__all__ = ["probe"]

import math
from dataclasses import replace

from torch import Tensor, nn

from securesgd.attacks.craft import craft
from securesgd.attacks.objective import Objective, evaluation_mode
from securesgd.attacks.settings import AttackSettings
from securesgd.attacks.streams import stream
from securesgd.attacks.suspicion import Suspicion
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import vote_counts

_EXAMPLES = 64
_DRAWS = 200
_MUCH = 0.05  # of the probed examples
_AGREEMENT = 0.1  # cosine between two averaged gradients, below which the average is mostly noise


def probe(model: nn.Module, inputs: Tensor, labels: Tensor, settings: AttackSettings) -> list[Suspicion]:
    """Return what speaks against believing this attack on this model, from the first examples it gets right.

    Gradients that are zero, or differ wildly between draws; twice the steps that break fewer; a budget of the whole
    pixel range that does not break everything. A gradient-free attack has nothing to probe.
    """
    if settings.attack == "square":
        return []
    with evaluation_mode(model):
        votes = vote_counts(model, inputs[: 2 * _EXAMPLES], _DRAWS, stream(settings.seed, "probe votes"))
        right = (votes.argmax(1) == labels[: 2 * _EXAMPLES]).nonzero()[:_EXAMPLES, 0]
        if len(right) < 8:
            return []
        x, y = inputs[right], labels[right]
        found = _gradients(model, x, y, settings)
        if settings.attack != "fgsm" and settings.target is None:
            found += _effort(model, x, y, settings)
    return found


def _gradients(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> list[Suspicion]:
    device = next(model.parameters(), x).device
    x, labels = x.to(device), labels.to(device)
    generator = stream(settings.seed, "probe gradients")
    objective = Objective(model, settings.loss, settings.eot, generator, rows=settings.rows)
    one, two = (objective.look(x, labels).gradient for _ in range(2))
    assert one is not None
    assert two is not None
    n, name = len(x), settings.attack
    zero = int((~one.flatten(1).any(1)).sum())
    found = []
    if zero > 0.02 * n:
        found.append(
            Suspicion(
                name="zero-gradients",
                attack=name,
                words=f"the gradient is exactly zero at {zero} of {n} images: the loss is flat or saturated there, so "
                "a gradient attack cannot move. Its accuracy is no measure of robustness; believe square and auto.",
                evidence={"images": zero, "of": n},
            )
        )
    agreement = float(nn.functional.cosine_similarity(one.flatten(1), two.flatten(1)).median())
    if objective.noisy and zero < n / 2 and agreement < _AGREEMENT:
        found.append(
            Suspicion(
                name="gradients-differ-between-draws",
                attack=name,
                words=f"two gradients, each averaged over {settings.eot} draws, have a median cosine of "
                f"{agreement:.2f}: the average is mostly noise. Raise --eot, to about "
                f"{_enough_draws(agreement, settings.eot)}.",
                evidence={"cosine": agreement, "eot": settings.eot},
            )
        )
    if isinstance(model, NoisyNetwork) and not objective.noisy:
        found.append(
            Suspicion(
                name="noise-free-gradients",
                attack=name,
                words="the attack sees the network without its noise, not the classifier it is measured on: its "
                "accuracy is an upper bound that an attack with --eot 20 may well lower.",
            )
        )
    return found


def _effort(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> list[Suspicion]:
    """Spend more: twice the steps should not break fewer, and the whole pixel range must break all."""
    whole = 1.0 if settings.norm == "linf" else math.sqrt(x[0].numel())
    # Without a best point kept, a longer walk may pass by: the paper's own weakness, not a sign of masked gradients.
    best = replace(settings, keep_best=True, early_stop=True, labels="true", queries=1)
    asked = {
        "as asked": best,
        "twice the steps": replace(best, steps=2 * best.steps),
        "whole range": replace(best, budget=whole),
    }
    broken = {name: int(_broken(model, x, labels, one).sum()) for name, one in asked.items()}
    n, found = len(x), []
    if broken["twice the steps"] < broken["as asked"] - max(2.0, _MUCH * n):
        found.append(
            Suspicion(
                name="more-steps-do-not-hurt",
                attack=settings.attack,
                words=f"with twice the steps the attack breaks {broken['twice the steps']} of {n} images, with "
                f"{settings.steps} steps {broken['as asked']}: it walks past what it has found.",
                evidence={"broken": broken["as asked"], "with_twice_the_steps": broken["twice the steps"], "of": n},
            )
        )
    if broken["whole range"] < (1 - _MUCH) * n - 1:
        found.append(
            Suspicion(
                name="whole-range-does-not-break",
                attack=settings.attack,
                words=f"allowed to change every pixel as it likes, the attack still breaks only "
                f"{broken['whole range']} of {n} images, where all must fall: its gradients lead nowhere "
                "(masking), or it has too few steps.",
                evidence={"broken": broken["whole range"], "of": n},
            )
        )
    return found


def _broken(model: nn.Module, x: Tensor, labels: Tensor, settings: AttackSettings) -> Tensor:
    images = craft(model, x, labels, settings).images
    return vote_counts(model, images, _DRAWS, stream(settings.seed, "probe votes", 1)).argmax(1) != labels


def _enough_draws(cosine: float, draws: int) -> int:
    """Return the draws at which two averages would agree to a cosine of one half."""
    # Averages of n draws have cosine s/(s + v/n) for signal s and variance v of one draw: solve for s/v, then for n.
    ratio = max(cosine, 1e-3) / (1 - max(cosine, 1e-3)) / draws
    return min(10_000, math.ceil(1 / ratio))
