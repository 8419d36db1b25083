"""Small networks of wavelets with a head fitted in a second, and attacks on them."""

import functools

import torch
from torch import Tensor, nn

import securesgd as ss


@functools.cache
def fitted(name: str) -> tuple[nn.Sequential, Tensor]:
    """Return a network on digits, and test images of it. Do not change it: make a deep copy."""
    digits = ss.load_data("digits")
    torch.manual_seed(0)
    network = ss.network(name, (1, 8, 8), 10)
    with torch.no_grad():
        features = network[0](digits.train_inputs).flatten(1)
    optimizer = torch.optim.Adam(network[2].parameters(), 0.01)
    for _ in range(60):
        loss = nn.functional.cross_entropy(network[2](features), digits.train_targets)
        optimizer.zero_grad()
        (loss + 0.01 * network[2].weight.square().sum()).backward()
        optimizer.step()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network, digits.test_inputs[:40]


def flipped(network: nn.Module, x: Tensor, classes: Tensor, radius: Tensor, steps: int, starts: int) -> Tensor:
    """Return which images change their class within an l2 radius of each, by projected gradient descent of margins."""
    generator = torch.Generator().manual_seed(0)
    shape = (-1, *(1,) * (x.dim() - 1))
    radius, found = radius.to(x).reshape(shape), torch.zeros(len(x), dtype=torch.bool)

    def inside(d: Tensor) -> Tensor:
        norms = d.double().flatten(1).norm(dim=1).reshape(shape)
        return (d * (radius / norms).clamp(max=1) * (1 - 1e-6)).to(x)

    for start in range(starts):
        d = torch.randn(x.shape, generator=generator, dtype=x.dtype) if start else torch.zeros_like(x)
        d = inside(d * radius)
        for _ in range(steps):
            d.requires_grad_()
            scores = network(x + d)
            found |= scores.argmax(1) != classes
            own = scores.gather(1, classes[:, None])[:, 0]
            (gradient,) = torch.autograd.grad((own - scores.scatter(1, classes[:, None], -1e30).amax(1)).sum(), d)
            norms = gradient.flatten(1).norm(dim=1).reshape(shape) + 1e-30
            d = inside((d - 0.2 * radius * gradient / norms).detach())
        found |= network(x + d).argmax(1) != classes
    return found
