"""The program of docs/how-to/opacus.md twice, by Opacus and by this package: epsilon, accuracy and seconds per step.

    python benchmarks/opacus_program.py [--steps 60] [--repeats 3]

Prints one JSON record. Both train the same network from the same weights with the same sampling rate, noise multiplier,
clipping norm and optimizer on the digits; steps of the two are timed in turns, so that a busy machine slows both. What
is timed is a whole step: sample, gradients, clipping, noise, update; for this package also ledger and digests.
"""

import argparse
import json
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

BATCH, NOISE, CLIP, DELTA, RATE = 128, 1.5, 1.0, 1e-4, 0.5


def network() -> nn.Module:
    """Return the network, with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(1024, 10))


def opacus_steps(data: ss.LoadedData, model: nn.Module, steps: int) -> tuple[Iterator[None], Callable[[], float]]:
    """Return an iterator that takes one step of Opacus each time, and a function that gives epsilon afterwards."""
    from opacus import PrivacyEngine

    engine = PrivacyEngine(accountant="prv")
    loader = DataLoader(TensorDataset(data.train_inputs, data.train_targets), batch_size=BATCH)
    wrapped, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=RATE), data_loader=loader,
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


def our_training(data: ss.LoadedData, model: nn.Module, steps: int, rate: float, folder: Path) -> ss.PrivateTraining:
    """Return the same training with this package."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return ss.PrivateTraining(
        model, optimizer, (data.train_inputs, data.train_targets), out=folder, sampling_rate=rate, batch_size=BATCH,
        noise_multiplier=NOISE, max_grad_norm=CLIP, delta=DELTA, steps=steps,
        test=TensorDataset(data.test_inputs, data.test_targets),
    )  # fmt: skip


def compare(steps: int, seed: int) -> dict[str, Any]:
    """Return epsilon, accuracy and the median seconds of a step of both programs."""
    data = ss.load_data("digits")
    theirs, ours = network(), network()
    torch.manual_seed(seed)
    their_steps, their_epsilon = opacus_steps(data, theirs, steps)
    rate = 1 / -(-len(data.train_targets) // BATCH)  # what Opacus makes of a batch size: one over the batches
    seconds: dict[str, list[float]] = {"opacus": [], "securesgd": []}
    with tempfile.TemporaryDirectory() as place:
        training = our_training(data, ours, steps, rate, Path(place) / "run")
        batches = training.batches()
        for _ in range(steps):
            start = time.perf_counter()
            next(their_steps)
            middle = time.perf_counter()
            training.step(next(batches))
            seconds["opacus"].append(middle - start)
            seconds["securesgd"].append(time.perf_counter() - middle)
        run = training.finish()
        our_epsilon, our_accuracy = run.privacy.accounted_epsilon, run.test_accuracy
    with torch.no_grad():
        right = theirs.eval()(data.test_inputs).argmax(1) == data.test_targets
    return {
        "epsilon": {"opacus": their_epsilon(), "securesgd": our_epsilon},
        "accuracy": {"opacus": float(right.float().mean()), "securesgd": our_accuracy},
        "seconds_per_step": {name: statistics.median(values) for name, values in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [compare(options.steps, seed) for seed in range(options.repeats)]
    ratios = [row["seconds_per_step"]["securesgd"] / row["seconds_per_step"]["opacus"] for row in rows]
    versions = {name: version(name) for name in ("torch", "opacus", "securesgd")}
    machine = {"threads": torch.get_num_threads(), "versions": versions, "n": len(rows)}
    print(json.dumps(machine | {"steps": options.steps, "rows": rows, "time_ratio": statistics.median(ratios)}))


if __name__ == "__main__":
    main()
