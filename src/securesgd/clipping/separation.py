"""Whether every example of a batch has a loss and a gradient of its own, whatever the other examples are.

Clipping bounds what an example adds to the sum. It bounds nothing if an example also moves what the others add: by
attention over the batch, by a capacity they share, by a statistic kept for later steps. No list of layers can name
all such code, so it is tried: a random half of the batch is run again, under the same random numbers, with the other
half replaced. Its losses and its gradient must not move, and what the model keeps of the pass must be the same.

All passes run on copies of the model that share its parameters, and the random generators are wound back: a check
leaves no trace, and its own choices come from the operating system. So it releases nothing, but for a refusal; and a
refusal tells of the data only if the examples are mixed, when there is no guarantee to lose.
"""

__all__ = ["Evidence", "Passes", "check_separation", "is_due", "made_up_examples", "replica"]

import copy
import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from securesgd.clipping.rules.forms import Unfit
from securesgd.errors import InvalidInputError
from securesgd.runtime.random_state import RandomState

_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}  # equal shapes give equal bits on the CPU; this is for others
_ALONE_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # another batch size is another order of rounding
_FIRST_CALLS = (1, 8, 64)
_EVERY = 1024  # a later check costs 1.4 steps of a convolutional network, 3.4 of a small dense one: 0.4 % at most
_MORE_SPLITS = 8  # of the first check, in which losses alone are compared
_MIXED = (
    "the loss of one example depends on other examples of its batch: clipping cannot bound the influence of one "
    "example; use layers and a loss that treat examples one by one"
)


def is_due(call: int) -> bool:
    """Return whether the examples are checked in call `call` (from 1): calls 1, 8, 64, and one in 1024 by chance.

    Chance, so that a model that counts its calls does not know when it is looked at.
    """
    return call in _FIRST_CALLS or secrets.randbelow(_EVERY) == 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an ordinary backward pass gives for sum_i weights[i] · loss_i; the fast path must agree with it."""

    weights: Tensor
    gradients: dict[str, Tensor]


def made_up_examples(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a batch of the same kind as this one that holds nothing of it: uniform numbers, token 0, class 0."""

    def made_up(like: Tensor) -> Tensor:
        chance = torch.Generator().manual_seed(secrets.randbits(63))
        if not like.is_floating_point():
            return torch.zeros_like(like)
        return torch.rand(like.shape, generator=chance, dtype=like.dtype).to(like.device)

    return made_up(inputs), made_up(targets)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass: the loss of each row, a gradient for each weighting asked for, and what the model kept."""

    losses: Tensor
    gradients: list[dict[str, Tensor]]
    buffers: dict[str, Tensor]
    draws: bool  # random numbers were drawn
    comparable: bool = True  # with other passes under `_StillRandomness`


@dataclass(frozen=True, slots=True)
class Passes:
    """A model, its loss and a batch: all that a pass over some of the examples, or over replaced ones, needs.

    `rows` holds each example `copies` times in a row.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    rows: Tensor
    wanted: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    copies: int
    before: RandomState
    _values: dict[str, Tensor] = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """Return the number of examples."""
        return len(self.rows) // self.copies

    def row_numbers(self, examples: Tensor) -> Tensor:
        """Return the numbers of the rows of these examples."""
        return (examples[:, None] * self.copies + torch.arange(self.copies)).flatten().to(self.rows.device)

    def run(
        self, examples: Tensor, weights: Sequence[Tensor] = (), *, model: nn.Module | None = None, still: bool = False
    ) -> _Pass:
        """Return a pass over the batch made of these examples, in this order, from the recorded random state.

        Args:
            examples: which examples to run; one may occur more than once.
            weights: for each, the gradient of sum_i weights[i] · loss_i is computed.
            model: the copy of the model to run; None for a fresh one.
            still: with every random number replaced by one constant.
        """
        model = model or replica(self.model)
        numbers = self.row_numbers(examples)
        self.before.restore()
        state = RandomState.of(model, beyond_torch=True)
        mode = _StillRandomness() if still else None
        with mode or nullcontext(), torch.enable_grad():
            losses = self.loss(model(_take(self.rows, numbers)), self.wanted[numbers])
            gradients = [self._gradient(losses, w) for w in weights]
        draws = not state.untouched()
        state.restore()
        self._require_untouched_parameters()
        buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        return _Pass(losses.detach(), gradients, buffers, draws, mode is None or mode.complete)

    def _gradient(self, losses: Tensor, weights: Tensor) -> dict[str, Tensor]:
        if not losses.requires_grad:
            return {}
        scaled = weights.to(losses).repeat_interleave(self.copies) / self.copies
        found = torch.autograd.grad(
            losses, list(self.parameters.values()), scaled, retain_graph=True, allow_unused=True
        )
        return {name: g for name, g in zip(self.parameters, found, strict=True) if g is not None}

    def _require_untouched_parameters(self) -> None:
        for name, parameter in self.model.named_parameters():
            if name in self._values and not _equal(parameter.detach(), self._values[name]):
                raise InvalidInputError(
                    f"a forward pass changes parameter {name!r}, outside the private step: what it takes from the "
                    "examples is carried into later steps; make the model's forward leave its parameters alone"
                )

    def remember(self) -> "Passes":
        """Return the same, with the values of all parameters and buffers as they are now."""
        tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        return replace(self, _values={name: tensor.detach().clone() for name, tensor in tensors})

    @torch.no_grad()
    def take_back(self) -> None:
        """Set parameters, buffers and random generators to what they were."""
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if name in self._values and not _equal(tensor.detach(), self._values[name]):
                tensor.data.copy_(self._values[name])
        self.before.restore()


def check_separation(passes: Passes, *, thorough: bool, made_up: bool = False) -> Evidence | None:
    """Return if no example's loss or gradient, and nothing the model keeps, was seen to depend on the other examples.

    Guarantee: the model, its buffers and random generators are left as they were. An example whose loss or gradient
        depends on one other by more than rounding is noticed with probability 1/2 by a thorough check and 1/4 by any
        other, and if it shows in the loss, by a thorough one with 95 %; for examples that depend on many others, or
        many that depend on some, what is left to chance is the product.

    On examples of the data only passes of the same shapes are compared, which give the same bits unless examples mix:
    no record, however odd, can make a separate model fail, so the outcome tells nothing of the data. What is compared
    up to rounding is asked of made-up examples alone.

    Args:
        passes: the model and the batch.
        thorough: also compare more splits, and a batch after one batch with the same after another.
        made_up: the batch is `made_up_examples`. Then a half is compared with the half alone, and the evidence is
            returned: the gradient of a weighted sum of losses, or None if it is not finite.

    Raises:
        InvalidInputError: the loss or gradient of an example depends on other examples of the batch, or a buffer,
            a parameter or a later pass depends on the examples of this one, or passes cannot be repeated.
        Unfit: an example has another loss alone than within its batch, or which random numbers it gets depends on the
            others: run alone, it is bounded all the same.
    """
    passes = passes.remember()
    try:
        return _try_to_mix(passes, thorough, made_up)
    finally:
        passes.take_back()


def _try_to_mix(passes: Passes, thorough: bool, made_up: bool) -> Evidence | None:
    """Return the evidence of `check_separation`, or raise what it raises."""
    if passes.examples < 2:
        return None
    chance = torch.Generator().manual_seed(secrets.randbits(63))
    split = _Split.draw(passes.examples, chance)
    weights = torch.rand(passes.examples, generator=chance) + 0.5
    halves = split.halves if thorough else (split.halves[int(torch.randint(2, (), generator=chance))],)
    shares = [weights * _members(half, passes.examples) for half in halves]
    base = passes.run(split.everyone, shares)
    finite = base.losses.view(passes.examples, -1).isfinite().all(dim=1).cpu()
    if not finite.all():
        numbers = passes.row_numbers(finite.nonzero().flatten())
        _try_to_mix(replace(passes, rows=_take(passes.rows, numbers), wanted=passes.wanted[numbers]), thorough, False)
        return None
    for half, share, gradient in zip(halves, shares, base.gradients, strict=True):
        _require_same_half(passes, replace(base, gradients=[gradient]), split, half, share, chance)
    if thorough:
        for _ in range(_MORE_SPLITS):
            other = _Split.draw(passes.examples, chance)
            _require_same_half(passes, replace(base, gradients=[]), other, other.halves[0], None, chance)
        _require_no_memory(passes, split, weights)
    if not made_up:
        return None
    _require_same_alone(passes, base, split.halves[0])
    return _evidence(passes, base, sum(shares, torch.zeros(passes.examples)))


def _evidence(passes: Passes, base: _Pass, weights: Tensor) -> Evidence | None:
    sums: dict[str, Tensor] = {}
    for gradient in base.gradients:
        for name, g in gradient.items():
            sums[name] = sums[name] + g if name in sums else g
    finite = all(bool(g.isfinite().all()) for g in sums.values())
    return Evidence(weights.to(next(iter(passes.parameters.values())).detach()), sums) if finite else None


@dataclass(frozen=True, slots=True)
class _Split:
    """A random split of the examples into halves."""

    everyone: Tensor
    halves: tuple[Tensor, Tensor]

    @classmethod
    def draw(cls, count: int, chance: torch.Generator) -> "_Split":
        order = torch.randperm(count, generator=chance)
        return cls(torch.arange(count), (order[: count // 2], order[count // 2 :]))

    def replaced(self, half: Tensor, chance: torch.Generator) -> Tensor:
        """Return the examples with those beside `half` replaced by some of `half`, or all of them by one of it."""
        chosen = torch.randint(len(half), (len(self.everyone),), generator=chance)
        if torch.rand((), generator=chance) < 0.5:
            chosen = chosen[:1].expand(len(self.everyone))
        return torch.where(_members(half, len(self.everyone)) > 0, self.everyone, half[chosen])


def _members(half: Tensor, count: int) -> Tensor:
    return torch.zeros(count).index_fill(0, half, 1.0)


def _require_same_half(
    passes: Passes, base: _Pass, split: _Split, half: Tensor, weights: Tensor | None, chance: torch.Generator
) -> None:
    """Pass if the losses, the gradient and the buffers are the same with the examples beside `half` replaced.

    `base` has the gradient for `weights`; with None, no gradients are compared.
    """
    asked = [] if weights is None else [weights]
    limit = _TOLERANCE[base.losses.dtype]

    def gap(a: _Pass, b: _Pass, half: Tensor) -> float:
        rows = passes.row_numbers(half)
        pairs = zip(a.gradients, b.gradients, strict=False)
        return max([_gap(a.losses[rows], b.losses[rows]), *(_gradient_gap(g, h) for g, h in pairs)])

    other = passes.run(split.replaced(half, chance), asked)
    _require_same_buffers(base, other, "takes up values of the examples")
    moved = gap(base, other, half)
    if moved <= limit:
        return
    _require_repeatable(gap(base, passes.run(split.everyone, asked), half), moved)
    if base.draws:
        quiet = passes.run(split.everyone, asked, still=True)
        moves = [gap(quiet, passes.run(split.replaced(half, chance), asked, still=True), half)]
        for _ in range(2 * _MORE_SPLITS):
            half = _Split.draw(passes.examples, chance).halves[0]
            moves.append(gap(quiet, passes.run(split.replaced(half, chance), still=True), half))
        if quiet.comparable and max(moves) <= limit:
            raise Unfit("which random numbers an example gets depends on the other examples")
    raise InvalidInputError(_MIXED)


def _require_same_alone(passes: Passes, base: _Pass, half: Tensor) -> None:
    """Pass if a half has the same losses, and leaves the same buffers, alone as within the batch."""
    whole, alone = base, passes.run(half, still=base.draws)
    if base.draws:  # other shapes draw other numbers
        whole = passes.run(torch.arange(passes.examples), still=True)
    if not (whole.comparable and alone.comparable):
        return
    _require_same_buffers(whole, alone, "depends on the number of examples")
    within, tolerance = whole.losses[passes.row_numbers(half)], _ALONE_TOLERANCE[base.losses.dtype]
    differs = ~torch.isclose(alone.losses, within, rtol=tolerance, atol=tolerance / 10, equal_nan=True)
    if differs.any():
        row = int(differs.nonzero()[0])
        raise Unfit(
            f"an example's loss is {within[row].item():.6g} within its batch and {alone.losses[row].item():.6g} alone"
        )


def _require_no_memory(passes: Passes, split: _Split, weights: Tensor) -> None:
    """Pass if the batch has the same losses and gradient after passes over nothing but one example or another."""

    def after(example: Tensor) -> tuple[_Pass, _Pass]:
        model = replica(passes.model)
        first = passes.run(example.expand(passes.examples), [weights], model=model)
        return first, passes.run(split.everyone, [weights], model=model)

    def gap(a: _Pass, b: _Pass) -> float:
        return max(_gap(a.losses, b.losses), _gradient_gap(a.gradients[0], b.gradients[0]))

    (first, usual), (other_first, other) = (after(half[:1]) for half in split.halves)
    _require_same_buffers(first, other_first, "takes up values of the examples")
    moved = gap(usual, other)
    if moved > _TOLERANCE[usual.losses.dtype]:
        _require_repeatable(gap(usual, after(split.halves[0][:1])[1]), moved)
        raise InvalidInputError(
            "a pass over a batch depends on the examples of the pass before it: what the model or its loss remembers "
            "is carried into later steps, and clipping does not bound it; keep no values of examples between passes"
        )


def _require_same_buffers(a: _Pass, b: _Pass, how: str) -> None:
    for name, value in a.buffers.items():
        if name not in b.buffers or not _equal(value, b.buffers[name]):
            raise InvalidInputError(
                f"buffer {name!r} {how} in a forward pass: it is carried into later steps and the saved model outside "
                "the private step; use layers without running statistics (GroupNorm, LayerNorm)"
            )


def _require_repeatable(noise: float, moved: float) -> None:
    if noise > moved / 100:
        raise InvalidInputError(
            "two passes over the same batch with the same random numbers differ: the model, its loss or a hook "
            "remembers something outside its buffers, or draws from a generator of its own; keep nothing between "
            "passes and draw from torch, numpy or random"
        )


class _StillRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While open, random tensors are constant, so that what a row gets depends neither on its place nor on the shape.

    `complete` turns False when something random was drawn for which that is not possible (permutations, say).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.complete = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else its first use imports the compiler, a second of start-up

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.rrelu_with_noise:
            x, slopes = args[:2]  # drawn for negative values only, so that their number depends on the examples
            return x * slopes.copy_(torch.where(x > 0, 1.0, 0.75))
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            if isinstance(result, Tensor) and (result.is_floating_point() or result.dtype == torch.bool):
                result.fill_(0.75)
            else:
                self.complete = False
        return result


def replica(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with the same parameters and state of its own, or `model` if it cannot be copied."""
    memo: dict[int, Any] = {id(p): p for p in model.parameters()}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return model  # a copy would have other parameters
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return model


def _take(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return rows by number, in the memory layout of `rows`: noise layers draw in the order of memory."""
    taken = rows.detach()[numbers]
    if rows.dim() == 4 and rows.stride(1) == 1:
        return torch.empty_like(taken, memory_format=torch.channels_last).copy_(taken)
    return taken


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return torch.equal(a, b) or (a.is_floating_point() and bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)))


def _gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest finite value of `a`; NaN and inf differ from all others."""
    differs = (a != b) & ~(a.isnan() & b.isnan())
    if not differs.any():
        return 0.0
    moved = float((a.double() - b.double())[differs].abs().max())
    size = max(a[a.isfinite()].double().abs().tolist(), default=0.0)
    return moved / size if size > 0 and moved == moved else float("inf")


def _gradient_gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the norm of the difference relative to that of `a`; 0 if one of them is not finite.

    A replaced row has the weight 0, and the same example may overflow there under other random numbers: 0 · inf is NaN
    in the gradient of the others. That is no mixing, and no record may pass for it.
    """
    if not all(bool(g.isfinite().all()) for g in (*a.values(), *b.values())):
        return 0.0
    square = sum(float(g.double().square().sum()) for g in a.values())
    names = a.keys() | b.keys()
    moved = sum(float((a.get(n, 0) - b.get(n, torch.zeros(()))).double().square().sum()) for n in names)
    if moved == 0:
        return 0.0
    gap = (moved / square) ** 0.5 if square > 0 else float("inf")
    return gap if gap == gap else float("inf")
