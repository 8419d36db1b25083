"""Whether every example of a batch has a loss and a gradient of its own, whatever the other examples are.

Clipping bounds what an example adds to the sum. It bounds nothing if an example also moves what the others add: by
attention over the batch, by a capacity they share, by a statistic kept for later steps. No list of layers can name
all such code, so it is tested: a random half of the batch is run again, under the same random numbers, with the other
half replaced. Its losses and its gradient must not change, and what the model keeps of the pass must be the same.

All passes (`passes`) run on copies of the model that share its parameters, and the random generators are restored: a
check leaves no trace, and its own random choices come from the operating system. So it releases nothing except a
refusal, and a refusal depends on the data only if the examples are mixed, when no guarantee exists.
"""

__all__ = ["Evidence", "check_separation", "is_due", "synthetic_examples"]

import secrets
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from securesgd.clipping.passes import Pass, Passes, replica, same_values, take_rows
from securesgd.clipping.rules.forms import FastPathError
from securesgd.errors import InvalidInputError

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}  # equal shapes give equal bits on the CPU; this is for others
_ALONE_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # another batch size is another order of rounding
_ALONE_IN_BFLOAT16 = 0.05
_FIRST_CALLS = (1, 8, 64)
_EVERY = 1024  # a later check costs 1.4 steps of a convolutional network, 3.4 of a small dense one: 0.4 % at most
_MORE_SPLITS = 8  # of the first check, in which losses alone are compared
_MIXED = (
    "the loss of one example depends on other examples of its batch: clipping cannot bound the influence of one "
    "example; use layers and a loss that treat examples one by one"
)


def is_due(call: int) -> bool:
    """Return whether the examples are checked in call `call` (from 1): calls 1, 8, 64, and one in 1024 at random.

    Random, so that a model that counts its calls cannot know when it is checked.
    """
    return call in _FIRST_CALLS or secrets.randbelow(_EVERY) == 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an ordinary backward pass gives for sum_i weights[i] · loss_i; the fast path must agree with it."""

    weights: Tensor
    gradients: dict[str, Tensor]


def synthetic_examples(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a batch of the same kind as this one that holds nothing of it: uniform numbers, token 0, class 0."""

    def synthetic(like: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        if not like.is_floating_point():
            return torch.zeros_like(like)
        return torch.rand(like.shape, generator=generator, dtype=like.dtype).to(like.device)

    return synthetic(inputs), synthetic(targets)


def check_separation(passes: Passes, *, thorough: bool, synthetic: bool = False) -> Evidence | None:
    """Return if no example's loss or gradient, and nothing the model keeps, was seen to depend on the other examples.

    Guarantee: the model, its buffers and random generators are left as they were. An example whose loss or gradient
        depends on one other by more than rounding is noticed with probability 1/2 by a thorough check and 1/4 by any
        other, and if it shows in the loss, by a thorough one with 95 %; for examples that depend on many others, or
        many that depend on some, the probability to miss it is the product.

    On examples of the data only passes of the same shapes are compared, which give the same bits unless examples mix:
    no record, however unusual, can make a separate model fail, so the outcome reveals nothing about the data. What must
    be compared up to rounding is compared on synthetic examples only.

    Args:
        passes: the model and the batch.
        thorough: also compare more splits, and a batch after one batch with the same after another.
        synthetic: the batch is `synthetic_examples`. Then a half is compared with the half alone, and the evidence is
            returned: the gradient of a weighted sum of losses, or None if it is not finite.

    Raises:
        InvalidInputError: the loss or gradient of an example depends on other examples of the batch, or a buffer,
            a parameter or a later pass depends on the examples of this one, or passes cannot be repeated.
        FastPathError: an example has another loss alone than within its batch, or which random numbers it gets depends
            on the others: run alone, its gradient is bounded all the same.
    """
    passes = passes.with_saved_values()
    try:
        return _check_mixing(passes, thorough, synthetic)
    finally:
        passes.restore()


def _check_mixing(passes: Passes, thorough: bool, synthetic: bool) -> Evidence | None:
    """Return the evidence of `check_separation`, or raise what it raises."""
    if passes.examples < 2:
        return None
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    split = _Split.draw(passes.examples, generator)
    weights = torch.rand(passes.examples, generator=generator) + 0.5
    halves = split.halves if thorough else (split.halves[int(torch.randint(2, (), generator=generator))],)
    shares = [weights * _members(half, passes.examples) for half in halves]
    base = passes.run(split.all_examples, shares)
    finite = base.losses.view(passes.examples, -1).isfinite().all(dim=1).cpu()
    if not finite.all():
        numbers = passes.row_numbers(finite.nonzero().flatten())
        _check_mixing(
            replace(passes, rows=take_rows(passes.rows, numbers), targets=passes.targets[numbers]), thorough, False
        )
        return None
    for half, share, gradient in zip(halves, shares, base.gradients, strict=True):
        _require_same_half(passes, replace(base, gradients=[gradient]), split, half, share, generator)
    if thorough:
        for _ in range(_MORE_SPLITS):
            other = _Split.draw(passes.examples, generator)
            _require_same_half(passes, replace(base, gradients=[]), other, other.halves[0], None, generator)
        _require_no_memory(passes, split, weights)
    if not synthetic:
        return None
    _require_same_alone(passes, base, split.halves[0])
    return _sum_evidence(passes, base, sum(shares, torch.zeros(passes.examples)))


def _sum_evidence(passes: Passes, base: Pass, weights: Tensor) -> Evidence | None:
    sums: dict[str, Tensor] = {}
    for gradient in base.gradients:
        for name, g in gradient.items():
            sums[name] = sums[name] + g if name in sums else g
    finite = all(bool(g.isfinite().all()) for g in sums.values())
    return Evidence(weights.to(next(iter(passes.parameters.values())).detach()), sums) if finite else None


@dataclass(frozen=True, slots=True)
class _Split:
    """A random split of the examples into halves."""

    all_examples: Tensor
    halves: tuple[Tensor, Tensor]

    @classmethod
    def draw(cls, count: int, generator: torch.Generator) -> "_Split":
        order = torch.randperm(count, generator=generator)
        return cls(torch.arange(count), (order[: count // 2], order[count // 2 :]))

    def replace_others(self, half: Tensor, generator: torch.Generator) -> Tensor:
        """Return the examples with those beside `half` replaced by some of `half`, or all of them by one of it."""
        chosen = torch.randint(len(half), (len(self.all_examples),), generator=generator)
        if torch.rand((), generator=generator) < 0.5:
            chosen = chosen[:1].expand(len(self.all_examples))
        return torch.where(_members(half, len(self.all_examples)) > 0, self.all_examples, half[chosen])


def _members(half: Tensor, count: int) -> Tensor:
    return torch.zeros(count).index_fill(0, half, 1.0)


def _require_same_half(
    passes: Passes, base: Pass, split: _Split, half: Tensor, weights: Tensor | None, generator: torch.Generator
) -> None:
    """Return if the losses, the gradient and the buffers are the same with the examples beside `half` replaced.

    `base` has the gradient for `weights`; with None, no gradients are compared.
    """
    weightings = [] if weights is None else [weights]
    limit = _TOLERANCE[base.losses.dtype]

    def gap(a: Pass, b: Pass, half: Tensor) -> float:
        rows = passes.row_numbers(half)
        pairs = zip(a.gradients, b.gradients, strict=False)
        return max([_gap(a.losses[rows], b.losses[rows]), *(_gradient_gap(g, h) for g, h in pairs)])

    other = passes.run(split.replace_others(half, generator), weightings)
    _require_same_buffers(base, other, "stores values of the examples")
    change = gap(base, other, half)
    if change <= limit:
        return
    _require_repeatable(gap(base, passes.run(split.all_examples, weightings), half), change)
    if base.draws:
        constant = passes.run(split.all_examples, weightings, constant_randomness=True)
        changes = [
            gap(constant, passes.run(split.replace_others(half, generator), weightings, constant_randomness=True), half)
        ]
        for _ in range(2 * _MORE_SPLITS):
            half = _Split.draw(passes.examples, generator).halves[0]
            changes.append(
                gap(constant, passes.run(split.replace_others(half, generator), constant_randomness=True), half)
            )
        if constant.comparable and max(changes) <= limit:
            raise FastPathError("which random numbers an example gets depends on the other examples")
    raise InvalidInputError(_MIXED)


def _require_same_alone(passes: Passes, base: Pass, half: Tensor) -> None:
    """Return if a half has the same losses, and leaves the same buffers, alone as within the batch."""
    whole, alone = base, passes.run(half, constant_randomness=base.draws)
    if base.draws:  # other shapes draw other numbers
        whole = passes.run(torch.arange(passes.examples), constant_randomness=True)
    if not (whole.comparable and alone.comparable):
        return
    _require_same_buffers(whole, alone, "depends on the number of examples")
    within, tolerance = whole.losses[passes.row_numbers(half)], _ALONE_TOLERANCE[base.losses.dtype]
    tolerance = tolerance if passes.precision == "float32" else _ALONE_IN_BFLOAT16
    differs = ~torch.isclose(alone.losses, within, rtol=tolerance, atol=tolerance / 10, equal_nan=True)
    if differs.any():
        row = int(differs.nonzero()[0])
        raise FastPathError(
            f"an example's loss is {within[row].item():.6g} within its batch and {alone.losses[row].item():.6g} alone"
        )


def _require_no_memory(passes: Passes, split: _Split, weights: Tensor) -> None:
    """Return if the batch has the same losses and gradient after passes over nothing but one example or another."""

    def after(example: Tensor) -> tuple[Pass, Pass]:
        model = replica(passes.model)
        first = passes.run(example.expand(passes.examples), [weights], model=model)
        return first, passes.run(split.all_examples, [weights], model=model)

    def gap(a: Pass, b: Pass) -> float:
        return max(_gap(a.losses, b.losses), _gradient_gap(a.gradients[0], b.gradients[0]))

    (first, usual), (other_first, other) = (after(half[:1]) for half in split.halves)
    _require_same_buffers(first, other_first, "stores values of the examples")
    change = gap(usual, other)
    if change > _TOLERANCE[usual.losses.dtype]:
        _require_repeatable(gap(usual, after(split.halves[0][:1])[1]), change)
        raise InvalidInputError(
            "a pass over a batch depends on the examples of the pass before it: what the model or its loss remembers "
            "affects later steps, and clipping does not bound it; keep no values of examples between passes"
        )


def _require_same_buffers(a: Pass, b: Pass, how: str) -> None:
    for name, value in a.buffers.items():
        if name not in b.buffers or not same_values(value, b.buffers[name]):
            raise InvalidInputError(
                f"buffer {name!r} {how} in a forward pass: it reaches later steps and the saved model outside "
                "the private step; use layers without running statistics (GroupNorm, LayerNorm)"
            )


def _require_repeatable(repeat_gap: float, change: float) -> None:
    if repeat_gap > change / 100:
        raise InvalidInputError(
            "two passes over the same batch with the same random numbers differ: the model, its loss or a hook "
            "remembers something outside its buffers, or draws from a generator of its own; keep nothing between "
            "passes and draw from torch, numpy or random"
        )


def _gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest finite value of `a`; NaN and inf differ from all others."""
    differs = (a != b) & ~(a.isnan() & b.isnan())
    if not differs.any():
        return 0.0
    change = float((a.double() - b.double())[differs].abs().max())
    size = max(a[a.isfinite()].double().abs().tolist(), default=0.0)
    return change / size if size > 0 and change == change else float("inf")


def _gradient_gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the norm of the difference relative to that of `a`; 0 if one of them is not finite.

    A replaced row has the weight 0, and the same example may overflow there under other random numbers: 0 · inf is NaN
    in the gradient of the others. That is not mixing, and no example may be mistaken for it.
    """
    if not all(bool(g.isfinite().all()) for g in (*a.values(), *b.values())):
        return 0.0
    square = sum(float(g.double().square().sum()) for g in a.values())
    names = a.keys() | b.keys()
    change = sum(float((a.get(n, 0) - b.get(n, torch.zeros(()))).double().square().sum()) for n in names)
    if change == 0:
        return 0.0
    gap = (change / square) ** 0.5 if square > 0 else float("inf")
    return gap if gap == gap else float("inf")
