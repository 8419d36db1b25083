"""Certified accuracy of MNIST images within l2 radii, without noise and votes: networks of wavelets and a linear head.

    securesgd train --dataset mnist --method dpsgd --epsilon 3 --out runs/mnist
    python benchmarks/lipschitz.py --run runs/mnist
    python benchmarks/lipschitz.py --network wavelet-linear

With `--run` the model is a run's. Without it, a head is fitted to the features of 10,000 training images in a minute,
with no privacy: it says what the bounds can prove, not what a private head gives. Prints one JSON row: certified is the
share of test images that are right and proven at a radius, attacked that of the first `--attacked` which are right also
in 40 steps of projected gradient descent, linear_limit the median radius if normalisations were linear and rounding
nothing.
"""

import argparse
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn

import securesgd as ss
from securesgd.certificates.lipschitz.linear_head import read_linear_head
from securesgd.certificates.lipschitz.radius import _GroupLengths, _Margins

RADII = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)
ATTACKED_AT = (0.05, 0.1, 0.25, 0.5, 1.0)
TRAINED, STEPS, DECAY = 10_000, 200, 1e-3


def plain_head(name: str, data: ss.LoadedData) -> nn.Module:
    """Return a network whose head is fitted without privacy, by full batches of Adam with weight decay."""
    torch.manual_seed(0)
    network = ss.network(name, tuple(data.train_inputs.shape[1:]), 10)
    with torch.no_grad():
        features = torch.cat([network[0](part).flatten(1) for part in data.train_inputs[:TRAINED].split(500)])
    optimizer = torch.optim.Adam(network[2].parameters(), 1e-3)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(network[2](features), data.train_targets[:TRAINED])
        optimizer.zero_grad()
        (loss + DECAY * network[2].weight.square().sum()).backward()
        optimizer.step()
    return network


def attacked(network: nn.Module, x: torch.Tensor, y: torch.Tensor, radius: float) -> torch.Tensor:
    """Return which images keep their class in 40 steps down the gradient of the margin, of length radius / 5."""
    kept, d = torch.ones(len(x), dtype=torch.bool), torch.zeros_like(x)
    for _ in range(40):
        d.requires_grad_()
        scores = network(x + d)
        kept &= scores.argmax(1) == y
        own = scores.gather(1, y[:, None])[:, 0]
        (gradient,) = torch.autograd.grad((own - scores.scatter(1, y[:, None], -1e30).amax(1)).sum(), d)
        d = d.detach() - 0.2 * radius * nn.functional.normalize(gradient.flatten(1)).reshape(x.shape)
        d = d * (radius / d.flatten(1).norm(dim=1).clamp(min=radius))[:, None, None, None]
    return kept & (network(x + d).argmax(1) == y)


def main() -> None:
    parser = argparse.ArgumentParser(description="Certified accuracy in l2 without votes; a JSON row.")
    parser.add_argument("--run", type=Path, help="a finished run of the method dpsgd or sgd on MNIST")
    parser.add_argument("--network", default="wavelet-linear", help="without --run: scatter-linear or wavelet-linear")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--attacked", type=int, default=100, help="images that are attacked")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.run:
        run = ss.load_run(options.run)
        data, network, trained = run.data, run.model, f"dpsgd, epsilon {run.privacy.accounted_epsilon:.4g}"
        name = run.config.network
    else:
        data, name = ss.load_data("mnist"), options.network
        network, trained = plain_head(name, data), f"head of {TRAINED:,} images, not private"
    x, y = data.test_inputs[: options.images], data.test_targets[: options.images].numpy()
    started = time.process_time()
    found = ss.lipschitz_radius(network, x)
    seconds = time.process_time() - started
    right = found.prediction == y
    head = read_linear_head(network)
    some = _Margins(head, _GroupLengths(head), x[:200], found.prediction[:200])
    limit = np.where(some.is_rival, some.margin / some.slope, np.inf).min(1)
    targets = data.test_targets[: options.attacked]
    left = {f"{r:g}": attacked(network, x[: options.attacked], targets, r).float().mean() for r in ATTACKED_AT}
    row = {
        "network": name,
        "trained": trained,
        "images": len(x),
        "accuracy": round(float(right.mean()), 4),
        "certified": {f"{r:g}": round(float((right & (found.radius >= r)).mean()), 4) for r in RADII},
        "median_radius": round(float(np.median(found.radius)), 5),
        "largest_radius": round(float(found.radius.max()), 5),
        "linear_limit": round(float(np.median(limit)), 5),
        "attacked_images": len(targets),
        "attacked": {r: round(float(share), 4) for r, share in left.items()},
        "cpu_seconds": round(seconds, 1),
        "n": 1,
        "threads": options.threads,
        "versions": {package: version(package) for package in ("securesgd", "torch", "numpy")},
        "command": f"python benchmarks/lipschitz.py {' '.join(sys.argv[1:])}".replace(str(options.run), "runs/mnist"),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
