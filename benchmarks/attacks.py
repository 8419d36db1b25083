"""An attack with averaged gradients beside the bare cost of its passes, in turn in one process.

MIM, 10 steps, 20 noise draws per gradient, on the paper's MNIST network (random weights, noise in the first layer). The
bare cost is the shortest torch loop that makes as many forward and backward passes of the same model on the same
images, in the faster of the two memory formats, and keeps nothing. Early stopping is off, so that both do the same
number; the attack's last look, on 100 fresh draws per image without gradient, is part of its time. One JSON row each:

    python benchmarks/attacks.py --images 1000 --turns 3

seconds is the median over `n` turns; ratio_to_bare the median over turns of the time divided by the bare cost.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

if "OMP_NUM_THREADS" not in os.environ:
    os.environ.setdefault("OMP_PROC_BIND", "true")  # as the command line does; read when torch is loaded

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from securesgd.attacks.craft import craft
from securesgd.attacks.settings import attack_settings
from securesgd.data.load import load_data
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime.machine import keep_memory

STEPS, EOT, ROWS = 10, 20, 500


def noisy_network(memory_format: torch.memory_format = torch.contiguous_format) -> NoisyNetwork:
    torch.manual_seed(0)
    model = NoisyNetwork(network("mnist-cnn", (1, 28, 28), 10), (1, 28, 28), place="first-layer")
    model.set_noise(np.full(model.units, 0.5))
    return model.to(memory_format=memory_format).eval()


def bare_passes(inputs: Tensor, labels: Tensor) -> Callable[[int], None]:
    """Return a function that makes as many passes as the attack does on so many images."""

    def formatted(memory_format: torch.memory_format) -> Callable[[int], None]:
        model, size = noisy_network(memory_format), ROWS // EOT

        def passes(images: int) -> None:
            for _ in range(STEPS):
                for start in range(0, images, size):
                    x = inputs[start : start + size].repeat(EOT, 1, 1, 1).contiguous(memory_format=memory_format)
                    x.requires_grad_()
                    loss = functional.cross_entropy(model(x), labels[start : start + size].repeat(EOT))
                    torch.autograd.grad(loss, x)

        return passes

    formats = [formatted(f) for f in (torch.contiguous_format, torch.channels_last)]
    return min(formats, key=lambda passes: min(seconds(lambda: passes(50)) for _ in range(2)))


def seconds(action: Callable[[], object]) -> float:
    """Return how long it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Time attacks beside their bare passes; JSON rows on standard output.")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    keep_memory()
    data = load_data("mnist")
    inputs, labels = data.test_inputs[: options.images], data.test_targets[: options.images]
    model, bare = noisy_network(), bare_passes(inputs, labels)
    settings = attack_settings("mim", 0.1, steps=STEPS, eot=EOT, early_stop=False, rows=ROWS)
    contenders: dict[str, Callable[[], object]] = {
        "bare passes": lambda: bare(len(inputs)),
        "mim": lambda: craft(model, inputs, labels, settings),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.turns):
        for name, action in contenders.items():
            times[name].append(seconds(action))
    for name, taken in times.items():
        row = {
            "contender": name,
            "network": "mnist-cnn",
            "images": len(inputs),
            "steps": STEPS,
            "eot": EOT,
            "passes": len(inputs) * STEPS * EOT,
            "seconds": round(statistics.median(taken), 2),
            "ratio_to_bare": round(
                statistics.median(a / b for a, b in zip(taken, times["bare passes"], strict=True)), 3
            ),
            "n": options.turns,
            "threads": torch.get_num_threads(),
            "torch": version("torch"),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
