"""DP-SGD, lines 4-16 of Algorithm 1: sample, clip, add up, add noise, divide, descend; every step paid for first."""

__all__ = ["NotFiniteError", "StepReport", "TrainingResult", "per_example_cross_entropy", "plain_sum", "train"]

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from securesgd.clipping.engine import ClippedSum, ClippingEngine, Loss
from securesgd.clipping.rules.forms import MOST_EXAMPLES
from securesgd.errors import InvalidInputError
from securesgd.privacy import Ledger, PrivacyStatement
from securesgd.runtime.grid_release import GridRelease
from securesgd.runtime.processes import Processes
from securesgd.runtime.randomness import Randomness
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.tensors import Checkpoint, load_tensors
from securesgd.training.accounted_run import Interlude, PaidRun, Question
from securesgd.training.examples import Examples, check_examples, data_digest, examples_of
from securesgd.training.settings import TrainingSettings
from securesgd.training.state import TrainingState


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What a step tells the person who trains. **Private**: loss and batch size are not covered by epsilon."""

    step: int
    steps: int
    loss: float
    """Mean over the examples of the sample whose loss is finite; NaN if there is none."""
    batch_size: int
    epsilon: float
    """Paid so far, including steps reserved ahead."""
    seconds: float
    held_out: float | None = None
    """Accuracy on held-out examples, now and then, if there are any."""


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A finished run."""

    folder: Path
    steps: int
    noise_multiplier: float
    statement: PrivacyStatement
    seconds: float


def per_example_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example."""
    return cross_entropy(outputs, targets, reduction="none")


def train(
    model: nn.Module,
    data: "Dataset[Any] | tuple[Tensor, Tensor]",
    settings: TrainingSettings,
    folder: str | Path,
    *,
    resume: bool = False,
    loss: Loss = per_example_cross_entropy,
    on_step: Callable[[StepReport], None] | None = None,
    project: Callable[[nn.Module], None] | None = None,
    interlude: Interlude | None = None,
    not_private: str = "the method does not protect the training data",
) -> TrainingResult:
    """Train `model` in place by DP-SGD and return the run's result with its privacy statement.

    Guarantee: the weights in `folder` and in `model`, at every moment of the run and after a crash, are covered by the
    (epsilon, delta) of `folder/ledger.jsonl` for the adjacency it names, in floating point as in exact arithmetic
    (docs/noise.md has the proof and its assumptions). A run that was interrupted and resumed on as many threads ends
    with the same bits as one that was not. A run with a `noise_seed` guarantees nothing, and its statement says so.
    Assumes: `loss` gives one loss per example and looks at no other; the initial weights do not depend on `data`; the
    number of examples is public unless the settings give a sampling rate or population; what `on_step` shows is not
    published. A run is resumed with the same code of model, loss and `project` (their names and shapes are checked, not
    what they compute), on as many threads.
    Raises: PrivacyError if the steps do not fit the target; InvalidInputError for bad settings, data or a folder in
    use; DamagedFileError for a broken run folder. Nothing existing is overwritten. Data are judged before the run
    (`check_examples`); once it has begun no example ends it: one that has no finite gradient contributes nothing.

    The model is left in eval mode. `project` is called after each step and may move the weights (post-processing, e.g.
    onto a sensitivity bound); `interlude` may look at the data once, for a price of its own. `not_private` is what
    the ledger gives as the reason if the settings have private=False. Under torchrun each rank handles its share of
    every sample; noise is added once, to the sum.
    """
    started = time.perf_counter()
    processes, files, examples = Processes(), RunFolder(folder), examples_of(data)
    if settings.rate(len(examples)) * len(examples) > MOST_EXAMPLES / 2:  # no sample will ever be twice as large
        raise InvalidInputError(f"batch_size is {settings.batch_size}; valid: at most {MOST_EXAMPLES // 2}")
    engine, state = ClippingEngine(model, settings.max_grad_norm), TrainingState(model, settings)
    check_examples(examples, model, labelled=loss is per_example_cross_entropy)
    resuming, finished = processes.on_first(lambda: (files.claim(resume), files.finished))
    if finished:
        return _loaded(state, processes, files, started)
    run: PaidRun | None = None

    def open_run() -> tuple[Randomness, Checkpoint]:
        nonlocal run
        opened = PaidRun.resume if resuming else PaidRun.start
        question = Question(settings, model, loss, len(examples), processes.count, interlude, engine.sensitivity)
        run = opened(files, question, state.tensors(), data_digest(examples))
        return run.randomness, run.begin

    randomness, begin = processes.on_first(open_run)
    with ExitStack() as cleanup, torch.random.fork_rng():
        if run is not None:
            cleanup.callback(run.ledger.close)
        state.load(begin.tensors, begin.record["step"])
        step = _Step(engine, examples, loss, settings, begin.record, randomness, processes)
        epsilon: float | None = None
        model.train()
        while state.step < settings.steps:
            if epsilon is None or state.step % settings.block_steps == 0:
                epsilon = processes.on_first(lambda: run.pay(state.step, not_private))  # type: ignore[union-attr]
            if interlude is not None and state.step == interlude.step:
                processes.on_first(lambda: run.pay_interlude())  # type: ignore[union-attr]
                _run_interlude(interlude, model, examples, randomness, processes)
            gradients, batch_size, mean_loss = step.gradient(state.step)
            state.descend(gradients)
            if project is not None:
                project(model)
            state.advance()
            if on_step is not None and processes.is_first:
                now = time.perf_counter() - started
                on_step(
                    StepReport(
                        step=state.step,
                        steps=settings.steps,
                        loss=mean_loss,
                        batch_size=batch_size,
                        epsilon=epsilon,
                        seconds=now,
                    )
                )
            if state.step % settings.checkpoint_steps == 0 or state.step == settings.steps:
                state.require_finite()
            if state.step % settings.checkpoint_steps == 0 and state.step < settings.steps:
                processes.on_first(lambda: run.save(state.tensors(), state.step))  # type: ignore[union-attr]
        state.use_average()
        statement = processes.on_first(lambda: run.finish(_weights(model)))  # type: ignore[union-attr]
    model.eval()
    return TrainingResult(
        folder=files.path,
        steps=settings.steps,
        noise_multiplier=float(begin.record["noise_multiplier"]),
        statement=statement,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _Step:
    """One step's release: the noisy, clipped gradient sum over a Poisson sample, divided by the expected batch size."""

    engine: ClippingEngine
    examples: Examples
    loss: Loss
    settings: TrainingSettings
    record: dict[str, Any]
    randomness: Randomness
    processes: Processes

    def gradient(self, step: int) -> tuple[dict[str, Tensor], int, float]:
        """Return (gradients, batch size, mean loss) of step `step`; the gradients alone are private.

        Guarantee (private settings): a Gaussian mechanism of noise multiplier σ on a Poisson sample of rate q. Division
        is by the *expected* batch size, which does not depend on the sample.
        """
        settings, processes = self.settings, self.processes
        sample = self.randomness.poisson_sample(step, len(self.examples), self.record["sampling_rate"])
        share = sample[processes.rank :: processes.count]
        self.randomness.seed_model(step * processes.count + processes.rank)
        add_up = self.engine.clipped_sum if settings.private else partial(plain_sum, self.engine.model)
        sums = processes.together(
            lambda: add_up(*self.examples.batch(share), self.loss, settings.copies, settings.micro_batch)
        )
        finite = sums.losses[~sums.losses.isnan()].double()
        losses = torch.stack([finite.sum(), finite.new_tensor(len(finite))])
        processes.add_up([*sums.gradients.values()])
        processes.add_up([losses])
        released = self._release([*sums.gradients.values()], step)
        return dict(zip(sums.gradients, released, strict=True)), len(sample), (losses[0] / losses[1]).item()

    def _release(self, sums: list[Tensor], step: int) -> list[Tensor]:
        """Return the sums with the noise of the step, divided by the expected batch size."""
        if not self.record["noise_multiplier"]:  # no protection, which the ledger says
            return [total.div_(self.settings.batch_size) for total in sums]
        release = GridRelease(
            sensitivity=self.engine.sensitivity,
            noise_multiplier=self.record["noise_multiplier"],
            size=sum(total.numel() for total in sums),
        )
        return release.release(sums, self.randomness.stream("noise", step), divisor=self.settings.batch_size)


def _run_interlude(
    interlude: Interlude, model: nn.Module, examples: Examples, randomness: Randomness, processes: Processes
) -> None:
    """Run the action with all its randomness, torch's too, from the run's key: the same at every try and every rank."""
    stream = randomness.stream("one-off release", interlude.step)
    torch.manual_seed(int(stream.words(1)[0] >> np.uint64(1)))
    processes.together(lambda: interlude.action(model, examples, stream))
    processes.copy_from_first(model.state_dict().values())


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _loaded(state: TrainingState, processes: Processes, files: RunFolder, started: float) -> TrainingResult:
    """Return the result of a run that had finished before, its weights put into the model."""

    def load() -> tuple[Checkpoint, PrivacyStatement]:
        files.tidy()
        weights = load_tensors(files.model)
        with Ledger.open(files.ledger) as ledger:
            ledger.require_head(*weights.record["ledger"])  # lines cut off the end would make the model look cheaper
            return weights, ledger.statement()

    weights, statement = processes.on_first(load)
    steps = int(weights.record["steps"])
    state.load({f"model.{name}": tensor for name, tensor in weights.tensors.items()}, steps)
    state.model.eval()
    return TrainingResult(
        folder=files.path,
        steps=steps,
        noise_multiplier=float(weights.record["noise_multiplier"]),
        statement=statement,
        seconds=time.perf_counter() - started,
    )


class NotFiniteError(InvalidInputError):
    """The loss of an example is NaN or infinite. Only training that protects nothing may say so."""


def plain_sum(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, copies: int = 1, micro_batch: int | None = None
) -> ClippedSum:
    """Return the sum over examples of their gradients, unclipped: no privacy. `norms` is empty.

    Arguments as for `ClippingEngine.clipped_sum`, so that one loop serves all methods.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = next(iter(parameters.values())).device
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    losses = [torch.zeros(0, device=device)]
    step = micro_batch or max(1, len(inputs))
    for start in range(0, len(inputs), step):
        rows = inputs[start : start + step].to(device).repeat_interleave(copies, dim=0)
        values = loss(model(rows), targets[start : start + step].to(device).repeat_interleave(copies, dim=0))
        gradients = torch.autograd.grad(values.sum() / copies, list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient
        losses.append(values.detach().view(-1, copies).mean(dim=1))
    every = torch.cat(losses)
    if not bool(torch.isfinite(every).all()):
        raise NotFiniteError("the loss is not finite; check the input for NaN or a learning rate that is too large")
    return ClippedSum(total, torch.zeros(0, device=device), every, skipped=0)
