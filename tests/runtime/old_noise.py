"""The noise of release 0.1.0, kept so that attacks can show their power: Box and Muller from 32-bit uniforms."""

import math

import numpy as np
import torch


def box_muller(generator, count):
    """Return float32 normals whose pairs lie on discrete circles and end at 6.76 standard deviations."""
    half = -(-count // 2)
    raw = torch.from_numpy(generator.bit_generator.random_raw(half).view(np.uint32)).to(torch.float32)
    radius, angle = raw[:half], raw[half:]
    radius.add_(0.5).mul_(2.0**-32).log_().mul_(-2.0).clamp_(min=0.0).sqrt_()
    angle.mul_(2 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius.mul_(angle.sin_())])[:count]
