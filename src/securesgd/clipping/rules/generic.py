"""Per-example gradients of any other module: `torch.func` re-runs it on each example of the recorded input."""

__all__ = ["generic_gradients"]

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from securesgd.clipping.rules.forms import ExampleGradient, FastPathError, Kept, LayerCall


def generic_gradients(call: LayerCall) -> dict[str, ExampleGradient]:
    """Return the per-example gradients of all wanted parameters of a module, its submodules included.

    Guarantee: the re-run of each example alone reproduced the recorded output, so the gradients are those of the
        forward pass that happened. The gradient of an example where it did not is NaN: it will contribute nothing.

    Raises:
        FastPathError: the module cannot be vectorised (data-dependent control flow, randomness), or its re-run differs
            from what was recorded for most of a synthetic batch (randomness, state, examples that influence others).
            Examples of the data never decide this: one of them could tip a majority, and with it what all others add.
    """
    trainable = {n: p.detach() for n, p in call.module.named_parameters() if n in call.wanted}
    constant = {n: p.detach() for n, p in call.module.named_parameters() if n not in call.wanted}
    constant |= {
        n: b.clone() for n, b in call.buffers.items()
    }  # the pass may have moved them: those of a spectral norm

    def one_row(inputs: tuple[Any, ...], g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        def output(parameters: dict[str, Tensor]) -> Tensor:
            batch_of_one = tuple(x.unsqueeze(0) for x in inputs)
            result: Tensor = functional_call(call.module, parameters | constant, batch_of_one)
            return result.squeeze(0)

        value, pull_back = vjp(output, trainable)  # type: ignore[misc]
        return value, pull_back(g)[0]

    try:
        values, gradients = vmap(one_row)(call.inputs, call.output_gradient)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FastPathError(f"its forward cannot be vectorised ({type(error).__name__})") from error
    if call.output is None or values.shape != call.output.shape:
        raise FastPathError("running it again on each example alone does not give the recorded output")
    wrong = ~_agreeing_rows(values, call.output)
    if call.synthetic and 2 * int(wrong.sum()) > len(wrong):
        raise FastPathError("running it again on each example alone does not give the recorded output")
    rows = (call.examples, call.copies)
    example_gradients: dict[str, ExampleGradient] = {}
    for name, gradient in gradients.items():
        if bool(wrong.any()):
            gradient = gradient.index_fill(0, wrong.nonzero().squeeze(1), float("nan"))
        example_gradients[name] = Kept.from_gradients(gradient.reshape(*rows, *gradient.shape[1:]).sum(dim=1))
    return example_gradients


def _agreeing_rows(again: Tensor, recorded: Tensor) -> Tensor:
    """Return which rows are the same up to rounding; each is judged by its own numbers."""
    tolerance = 1e-4 if recorded.dtype == torch.float32 else 1e-9
    again, recorded = again.reshape(len(again), -1), recorded.reshape(len(recorded), -1)
    if not recorded.shape[1]:
        return torch.ones(len(recorded), dtype=torch.bool, device=recorded.device)
    size = recorded.abs().nan_to_num(nan=0.0, posinf=0.0).amax(dim=1, keepdim=True)
    near = (again - recorded).abs() <= tolerance * (size + recorded.abs())
    return (near | (again == recorded) | (again.isnan() & recorded.isnan())).all(dim=1)
