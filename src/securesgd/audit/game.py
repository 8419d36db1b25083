"""One training run with canaries: the engine, the sampling and the noise of a configuration, as they are shipped."""

__all__ = ["AuditedTraining", "GameResult", "play"]

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.audit.canaries import AuditedNetwork, CanaryCounts, audited_examples, audited_loss
from securesgd.audit.guesses import white_box_scores
from securesgd.audit.sabotage import sabotaged_step
from securesgd.clipping.engine import ClippingEngine, Loss
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.processes import Processes
from securesgd.runtime.randomness import Randomness
from securesgd.training.consistency import joint_loss
from securesgd.training.settings import TrainingSettings
from securesgd.training.state import TrainingState
from securesgd.training.step import Step
from securesgd.validate import Array

_LOSS_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class AuditedTraining:
    """What is audited: a fresh network and the settings of its training, on some examples."""

    network: nn.Module
    loss: Loss
    settings: TrainingSettings
    steps: int
    sampling_rate: float
    noise_multiplier: float
    inputs: Tensor
    targets: Tensor
    classes: int
    input_range: tuple[float, float] = (0.0, 1.0)
    private: bool = False
    """Whether the examples are somebody's, so that what the black box counts must not be published."""


@dataclass(frozen=True, kw_only=True)
class GameResult:
    """Scores of the canaries that the white box and the black box are about, with the coins they are to be guessed."""

    white_box: Array
    white_coins: NDArray[np.bool_]
    black_box: Array
    black_coins: NDArray[np.bool_]
    coins_sha256: str
    seconds: float


def play(
    training: AuditedTraining,
    counts: CanaryCounts,
    *,
    seed: int | None = None,
    sabotage: str | None = None,
    insert: bool = True,
    on_step: Callable[[int], None] | None = None,
) -> GameResult:
    """Train once with canaries that are in the data by the toss of a coin, and return their scores with the coins.

    The network of `training` is trained in place. Coins, canaries, sampling and noise come from the operating system's
    randomness, or from `seed`. `sabotage` breaks the training in one place. With `insert` False the coins are tossed
    but no canary is in the data, whatever they say: whoever then proves an epsilon above 0 is wrong.
    """
    started = time.perf_counter()
    numbers = (training.sampling_rate, training.noise_multiplier, training.steps, counts, sabotage, insert)
    randomness = Randomness.secret() if seed is None else Randomness.from_seed(seed, f"audit of {numbers}")
    secret = KeyStream(randomness.key).child("coins of an audit")
    coins = (secret.words(counts.traced + counts.data) & np.uint64(1)).astype(bool)
    data_canaries = _data_canaries(training, counts.data, secret)
    settings, shape = training.settings, tuple(training.inputs.shape[1:])
    model = AuditedNetwork(training.network, shape, counts)
    examples = audited_examples(
        training.inputs, training.targets, coins & insert, counts, data_canaries, training.classes
    )
    step = Step(
        engine=ClippingEngine(model, settings.max_grad_norm),
        examples=examples,
        loss=audited_loss(model, joint_loss(training.loss, settings), training.classes, settings.max_grad_norm),
        settings=settings,
        sampling_rate=training.sampling_rate,
        noise_multiplier=training.noise_multiplier,
        randomness=randomness,
        processes=Processes(),
    )
    step = sabotaged_step(step, sabotage)
    state = TrainingState(model, settings)
    traces = np.empty((training.steps, counts.traced))
    with torch.random.fork_rng():
        before = _losses(training, *data_canaries)
        for number in range(training.steps):
            model.train()
            gradients, _, _ = step.gradient(number)
            traces[number] = model.traces(gradients) * settings.batch_size
            state.apply_gradients(gradients)
            model.project()
            state.count_step()
            if on_step is not None:
                on_step(number + 1)
        state.use_average()
        gained = before - _losses(training, *data_canaries)
    scores = [
        white_box_scores(part, sampling_rate=training.sampling_rate, clipping_norm=settings.max_grad_norm)
        for part in np.split(traces, [counts.weights], axis=1)
    ]
    return GameResult(
        white_box=np.concatenate(scores),
        white_coins=coins[: counts.traced],
        black_box=gained - np.median(gained),
        black_coins=coins[counts.traced :],
        coins_sha256=hashlib.sha256(np.packbits(coins).tobytes()).hexdigest(),
        seconds=time.perf_counter() - started,
    )


def _data_canaries(training: AuditedTraining, count: int, secret: KeyStream) -> tuple[Tensor, Tensor]:
    """Return inputs of which every number is at one end of the range, with classes, all at random."""
    generator, (low, high) = secret.generator(), training.input_range
    ends = generator.integers(0, 2, (count, *training.inputs.shape[1:]))
    labels = generator.integers(0, training.classes, count)
    return torch.from_numpy(np.where(ends, high, low)).float(), torch.from_numpy(labels)


@torch.no_grad()
def _losses(training: AuditedTraining, inputs: Tensor, targets: Tensor) -> Array:
    """Return the losses of the network in eval mode; not finite ones are large."""
    network, device = training.network.eval(), next(training.network.parameters()).device
    losses = [
        training.loss(network(x.to(device)), y.to(device)).double().cpu()
        for x, y in zip(torch.split(inputs, _LOSS_BATCH), torch.split(targets, _LOSS_BATCH), strict=True)
    ]
    return torch.cat(losses).nan_to_num(nan=1e30, posinf=1e30, neginf=-1e30).numpy()
