"""Which models may be trained with per-example clipping: no layer may let examples influence each other."""

__all__ = ["check_model", "model_structure", "same_structure"]

import operator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from securesgd.errors import InvalidInputError

_OF_TORCH = {*vars(nn.Module())}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
LEGACY_HOOKS = {"SpectralNorm": "spectral_norm", "WeightNorm": "weight_norm"}


def check_model(model: nn.Module) -> None:
    """Return if no module of `model` is known to break per-example clipping.

    Raises:
        InvalidInputError: naming the module and what to use instead.
    """
    for name, module in model.named_modules():
        reason = _objection(module)
        if reason:
            raise InvalidInputError(f"module {name or 'the model'!r} ({type(module).__name__}) {reason}")
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise InvalidInputError("the model has no trainable parameter: set requires_grad on at least one")
    for name, parameter in trainable:
        if parameter.dtype not in (torch.float32, torch.float64):
            raise InvalidInputError(
                f"parameter {name!r} has type {parameter.dtype}: clipping needs float32 or float64, "
                "since norms in a shorter type are too inexact to bound a gradient"
            )
        if parameter._post_accumulate_grad_hooks:
            raise InvalidInputError(
                f"parameter {name!r} has a hook that runs after its gradient is accumulated (an optimizer step in the "
                "backward pass, for example): private gradients are not accumulated, so it would not run; remove it"
            )
        if parameter.device != trainable[0][1].device:
            raise InvalidInputError(
                f"parameter {name!r} is on {parameter.device}, {trainable[0][0]!r} on {trainable[0][1].device}: "
                "all trainable parameters must be on one device"
            )


def model_structure(model: nn.Module) -> list[Any]:
    """Return the objects that say what a model runs: its modules, their classes, hooks, functions and switches.

    Numbers and tensors are left out, so that it is the same in every step of an ordinary training.
    """
    structure: list[Any] = []
    for module in model.modules():
        own = vars(module)
        structure += module, type(module)
        for kind in _HOOKS:
            structure += own[kind].values()
        for name, value in own.items():
            if name not in _OF_TORCH and (value is None or isinstance(value, bool | str) or callable(value)):
                structure += name, value
    return structure


def same_structure(a: list[Any], b: list[Any]) -> bool:
    """Return whether two structures are of the same objects."""
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _objection(module: nn.Module) -> str | None:
    if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        return "is compiled: clipping has to see its layers; give the module that was passed to torch.compile"
    if isinstance(module, _BatchNorm | nn.SyncBatchNorm):
        return "mixes the examples of a batch: use GroupNorm"
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps statistics over examples: set track_running_stats=False or use GroupNorm"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return "rewrites the rows an example looks up (max_norm), outside the private step: set max_norm=None"
        if module.scale_grad_by_freq:
            return "scales gradients by counts over the batch: set scale_grad_by_freq=False"
    if any(is_lazy(p) for p in module._parameters.values() if p is not None):
        return "has parameters without a shape yet: run the model once on an example first"
    for hook in module._forward_pre_hooks.values():
        if type(hook).__name__ in LEGACY_HOOKS:
            new = LEGACY_HOOKS[type(hook).__name__]
            return f"computes its weight in a hook: use torch.nn.utils.parametrizations.{new}"
    return None
