"""An MNIST epoch of the paper's network: plain SGD, DP-SGD and Secure-SGD, whole epochs in turn in one process.

Plain SGD is the shortest torch loop there is, on shuffled batches, in the faster of the two memory formats. The others
are the product itself: `train` with its ledger, secret noise, checkpoints and, for Secure-SGD, noise in the first layer
and control of its sensitivity after each step. What a training does once (calibration, a digest of the data, the final
model) is not part of an epoch: time is from the end of the first step to the end of the last, and the noise multiplier
is given. One JSON row per contender:

    python benchmarks/secure_epoch.py --turns 3

seconds is the median over `n` turns; ratio_to_sgd the median over turns of the time divided by plain SGD's in the turn;
cpu_seconds and cpu_ratio_to_sgd are the same in processor seconds, which other work on the machine moves less.
--share 0.25 runs a quarter of the steps of an epoch; times are those of the whole.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

if "OMP_NUM_THREADS" not in os.environ:
    os.environ.setdefault("OMP_PROC_BIND", "true")  # as the command line does; read when torch is loaded

import torch
from torch.nn import functional

from securesgd.build import build_model
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.models.networks import network
from securesgd.runtime.machine import keep_memory
from securesgd.training.loop import train

CONTENDERS = {
    "sgd": None,
    "dpsgd": ("dpsgd", {}),
    "secure-sgd, noise at the input, prior r": ("secure-sgd", {"place": "input", "redistribution": "prior"}),
    "secure-sgd, noise at the input, learned r": ("secure-sgd", {"place": "input", "start": "prior"}),
    "secure-sgd, noise in the first layer, learned r": ("secure-sgd", {"place": "first-layer", "start": "uniform"}),
}


def plain_epoch(inputs: torch.Tensor, targets: torch.Tensor, batch: int) -> Callable[[int], None]:
    """Return a function that does so many steps of plain SGD."""

    def formatted(memory_format: torch.memory_format) -> Callable[[int], None]:
        model = network("mnist-cnn", (1, 28, 28), 10).to(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        def steps(count: int) -> None:
            order = torch.randperm(len(inputs))
            for i in range(count):
                chosen = order[i * batch : (i + 1) * batch]
                images = inputs[chosen].contiguous(memory_format=memory_format)
                optimizer.zero_grad()
                functional.cross_entropy(model(images), targets[chosen]).backward()
                optimizer.step()

        return steps

    formats = [formatted(f) for f in (torch.contiguous_format, torch.channels_last)]
    return min(formats, key=lambda steps: min(seconds(lambda: steps(10))[1] for _ in range(3)))


def clocks() -> tuple[float, float]:
    """Return the time and the processor time of this process."""
    return time.perf_counter(), time.process_time()


def seconds(action: Callable[[], object]) -> tuple[float, float]:
    """Return how long it takes, by both clocks."""
    start = clocks()
    action()
    return difference(start, clocks())


def difference(start: tuple[float, float], end: tuple[float, float], scale: float = 1.0) -> tuple[float, float]:
    """Return what passed on both clocks, times `scale`."""
    return (end[0] - start[0]) * scale, (end[1] - start[1]) * scale


def main() -> None:
    parser = argparse.ArgumentParser(description="Time MNIST epochs in turn; JSON rows on standard output.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of an epoch that are run")
    parser.add_argument("--only", default="", help="part of the names of the contenders to time beside plain SGD")
    options = parser.parse_args()
    keep_memory()
    data = load_data("mnist")
    whole = len(data.train_targets) // options.batch
    steps = max(10, round(options.share * whole))
    plain = plain_epoch(data.train_inputs, data.train_targets, options.batch)

    def epoch(contender: str) -> tuple[float, float]:
        choice = CONTENDERS[contender]
        if choice is None:
            wall, processor = seconds(lambda: plain(steps))
            return wall * whole / steps, processor * whole / steps
        method, settings = choice
        config = run_config(
            "mnist", method, network="mnist-cnn", noise_multiplier=1.0, batch_size=options.batch, steps=steps,
            **({"copies": 1} | settings if method != "dpsgd" else settings),
        )  # fmt: skip
        model = build_model(config, data.input_shape, data.classes)
        ends: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as folder:
            train(
                model,
                (data.train_inputs, data.train_targets),
                config.training,
                Path(folder) / "run",
                on_step=lambda _: ends.append(clocks()),
            )
        return difference(ends[0], ends[-1], whole / (steps - 1))

    chosen = [name for name in CONTENDERS if name == "sgd" or options.only in name]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for _ in range(options.turns):
        for name in chosen:
            times[name].append(epoch(name))

    def ratio(name: str, clock: int) -> float:
        pairs = zip(times[name], times["sgd"], strict=True)
        return round(statistics.median(a[clock] / b[clock] for a, b in pairs), 3)

    for name, taken in times.items():
        row = {
            "contender": name,
            "network": "mnist-cnn",
            "batch": options.batch,
            "steps": steps,
            "seconds": round(statistics.median(wall for wall, _ in taken), 2),
            "ratio_to_sgd": ratio(name, 0),
            "cpu_seconds": round(statistics.median(processor for _, processor in taken), 2),
            "cpu_ratio_to_sgd": ratio(name, 1),
            "n": options.turns,
            "load": round(os.getloadavg()[0], 1),
            "threads": torch.get_num_threads(),
            "torch": version("torch"),
            "securesgd": version("securesgd"),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
