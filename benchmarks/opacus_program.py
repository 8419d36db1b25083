"""The program of docs/how-to/opacus.md twice, by Opacus and by this package: epsilon, accuracy and seconds per step.

    python benchmarks/opacus_program.py [--steps 60] [--repeats 3] [--first-seed 0] [--program digits|mnist]

Prints one JSON record. Both train the same network from the same weights with the same sampling rate, noise multiplier,
clipping norm and optimizer on the digits; `mnist` is the same with the paper's MNIST network on MNIST at batch 256.
Steps of the two are timed in turns, so that a busy machine slows both. What is timed is a whole step: sample,
gradients, clipping, noise, update; for this package also ledger and digests. time_ratio is in seconds, cpu_ratio in
processor seconds, which other work on the machine moves less; both are ours over Opacus's.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import securesgd as ss
from securesgd.models.networks import network as built_in_network

BATCHES, NOISE, CLIP, DELTA = {"digits": 128, "mnist": 256}, 1.5, 1.0, 1e-4
RATES = {"digits": 0.5, "mnist": 0.1}


def network(program: str = "digits") -> nn.Module:
    """Return the network, with the same weights each time."""
    torch.manual_seed(0)
    if program == "mnist":
        return built_in_network("mnist-cnn", (1, 28, 28), 10)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(1024, 10))


def opacus_steps(
    data: ss.LoadedData, model: nn.Module, steps: int, program: str = "digits"
) -> tuple[Iterator[None], Callable[[], float]]:
    """Return an iterator that takes one step of Opacus each time, and a function that gives epsilon afterwards."""
    from opacus import PrivacyEngine

    engine = PrivacyEngine(accountant="prv")
    loader = DataLoader(TensorDataset(data.train_inputs, data.train_targets), batch_size=BATCHES[program])
    wrapped, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=RATES[program]), data_loader=loader,
        noise_multiplier=NOISE, max_grad_norm=CLIP,
    )  # fmt: skip
    rate = 1 / len(loader)

    def run() -> Iterator[None]:
        done = 0
        while done < steps:
            for inputs, targets in loader:
                if done == steps:
                    return
                optimizer.zero_grad()
                cross_entropy(wrapped(inputs), targets).backward()
                optimizer.step()
                done += 1
                yield

    def epsilon() -> float:
        assert abs(rate - engine.accountant.history[0][1]) < 1e-12
        return float(engine.accountant.get_epsilon(DELTA, eps_error=0.001))  # its default adds 0.01 to epsilon

    return run(), epsilon


def our_training(
    data: ss.LoadedData, model: nn.Module, steps: int, rate: float, folder: Path, program: str = "digits"
) -> ss.PrivateTraining:
    """Return the same training with this package."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[program])
    return ss.PrivateTraining(
        model, optimizer, (data.train_inputs, data.train_targets), out=folder, sampling_rate=rate,
        batch_size=BATCHES[program], noise_multiplier=NOISE, max_grad_norm=CLIP, delta=DELTA, steps=steps,
        test=TensorDataset(data.test_inputs, data.test_targets),
    )  # fmt: skip


def compare(steps: int, seed: int, program: str = "digits") -> dict[str, Any]:
    """Return epsilon, accuracy and the median seconds of a step of both programs."""
    data = ss.load_data(program)
    theirs, ours = network(program), network(program)
    torch.manual_seed(seed)
    their_steps, their_epsilon = opacus_steps(data, theirs, steps, program)
    batches_of_epoch = -(-len(data.train_targets) // BATCHES[program])
    rate = 1 / batches_of_epoch  # what Opacus makes of a batch size
    seconds: dict[str, list[float]] = {"opacus": [], "securesgd": []}
    processor: dict[str, list[float]] = {"opacus": [], "securesgd": []}
    with tempfile.TemporaryDirectory() as place:
        training = our_training(data, ours, steps, rate, Path(place) / "run", program)
        batches = training.batches()
        for _ in range(steps):
            clocks = [(time.perf_counter(), time.process_time())]
            next(their_steps)
            clocks.append((time.perf_counter(), time.process_time()))
            training.step(next(batches))
            clocks.append((time.perf_counter(), time.process_time()))
            for name, before, after in zip(seconds, clocks, clocks[1:], strict=False):
                seconds[name].append(after[0] - before[0])
                processor[name].append(after[1] - before[1])
        run = training.finish()
        our_epsilon, our_accuracy = run.privacy.accounted_epsilon, run.test_accuracy
    with torch.no_grad():
        right = theirs.eval()(data.test_inputs).argmax(1) == data.test_targets
    return {
        "epsilon": {"opacus": their_epsilon(), "securesgd": our_epsilon},
        "accuracy": {"opacus": float(right.float().mean()), "securesgd": our_accuracy},
        "seconds_per_step": {name: statistics.median(values) for name, values in seconds.items()},
        "cpu_seconds_per_step": {name: statistics.median(values) for name, values in processor.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="of the repeats, which have one seed each")
    parser.add_argument("--program", choices=sorted(BATCHES), default="digits")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = range(options.first_seed, options.first_seed + options.repeats)
    rows = [{"seed": seed} | compare(options.steps, seed, options.program) for seed in seeds]

    def ratio(kind: str) -> float:
        return statistics.median(row[kind]["securesgd"] / row[kind]["opacus"] for row in rows)

    versions = {name: version(name) for name in ("torch", "opacus", "securesgd")}
    machine = {"threads": torch.get_num_threads(), "versions": versions, "n": len(rows), "load": os.getloadavg()[0]}
    ratios = {"time_ratio": ratio("seconds_per_step"), "cpu_ratio": ratio("cpu_seconds_per_step")}
    print(json.dumps({"program": options.program} | machine | {"steps": options.steps, "rows": rows} | ratios))


if __name__ == "__main__":
    main()
