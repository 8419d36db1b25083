"""Attacks as a user would write them, outside the package: found by import path or added as a row of the table."""

import torch
from torch.nn import functional


def signed_gradient(model, images, labels, settings, generator):
    """One step of the whole budget along the gradient, from a random point nearby."""
    x = (images + 0.01 * torch.rand(images.shape, generator=generator)).requires_grad_()
    loss = functional.cross_entropy(model(x), labels)
    (gradient,) = torch.autograd.grad(loss, x)
    sign = 1 if settings.target is None else -1
    return (images + sign * settings.budget * gradient.sign()).clamp(0, 1)


def far_outside(model, images, labels, settings, generator):
    return images + 50 * (0.5 - images.round())


def not_numbers(model, images, labels, settings, generator):
    return torch.full_like(images, torch.nan)
