"""What must not grow with the data or the steps: time of a sample and of a step, of epsilon, and memory of a batch.

    python benchmarks/scaling.py                         # all parts, printed as JSON rows
    python benchmarks/scaling.py --only accounting --repeats 5
    python benchmarks/scaling.py --figure FILE.png --rows FILE.jsonl     # draws rows, measures nothing

sample      seconds of one Poisson sample of 256 expected examples, against the number of examples
step        seconds of one whole DP-SGD step (sample, clip, add noise) of a linear network, batch 256, against the
            number of examples, which are 1,000 images again and again, so that 10⁸ of them fit
batch       seconds of a step of the MNIST network, and memory beyond that of the process before it, against the
            expected batch, with micro-batches of 256: each in a process of its own
accounting  seconds of the epsilons of a whole run, one per ledger line, and of its calibration, against the steps
certify     seconds of the l2 certificates of 4 images, MNIST network with noise in its first layer, against the draws

`seconds` of the processor is the median over `n` measurements, `spread` the distance between their quartiles;
`clock_seconds` by the clock are more on a busy machine, and `load` says how busy: the average number of processes that
wanted a core, this one among them. Run it with OMP_NUM_THREADS=1, so that both kinds of seconds mean the same.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

BATCH = 256
EXAMPLES = [10**power for power in range(4, 9)]
BATCHES = [256, 512, 1024, 2048, 4096]
STEPS = [100, 1000, 10_000, 100_000]
DRAWS = [128, 512, 2048, 8192]
IMAGES = 4


def timed(action: Callable[[int], Any], repeats: int) -> dict[str, Any]:
    """Return how long action(0), action(1), … take, in seconds of the processor and by the clock; not the first.

    The median and the distance between the quartiles of the former, which other programs disturb less.
    """
    busy, passed = [], []
    for i in range(repeats + 1):
        began = time.process_time(), time.perf_counter()
        action(i)
        busy.append(time.process_time() - began[0])
        passed.append(time.perf_counter() - began[1])
    quartiles = statistics.quantiles(busy[1:], n=4) if repeats > 1 else [busy[1]] * 3
    clock = {"clock_seconds": statistics.median(passed[1:]), "n": repeats}
    return {"seconds": quartiles[1], "spread": quartiles[2] - quartiles[0]} | clock


def sample_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of a sample for each number of examples."""
    from securesgd.runtime.randomness import Randomness

    randomness = Randomness.from_seed(0, "benchmark")
    for examples in EXAMPLES:
        draw = timed(lambda i, n=examples: randomness.poisson_sample(i, n, BATCH / n), repeats)  # type: ignore[misc]
        yield {"part": "sample", "examples": examples, "batch": BATCH} | draw


def step_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of a step for each number of examples."""
    import torch

    class Repeated:
        """1,000 images in a row, as often as needed."""

        def __init__(self, count: int) -> None:
            self.count, self.inputs = count, torch.rand(1000, 1, 28, 28)

        def __len__(self) -> int:
            return self.count

        def batch(self, indices: Any) -> Any:
            return self.inputs[torch.as_tensor(indices) % 1000], torch.as_tensor(indices) % 10

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    for examples in EXAMPLES:
        step = _step(model, Repeated(examples), BATCH, None)
        yield {"part": "step", "examples": examples, "batch": BATCH} | timed(step.gradient, repeats)


def _step(model: Any, examples: Any, batch: int, micro_batch: int | None) -> Any:
    """Return a DP-SGD step of the training loop, without its ledger."""
    from securesgd.clipping.engine import ClippingEngine
    from securesgd.runtime.processes import Processes
    from securesgd.runtime.randomness import Randomness
    from securesgd.training.loop import per_example_cross_entropy
    from securesgd.training.settings import TrainingSettings
    from securesgd.training.step import Step

    settings = TrainingSettings(delta=1e-9, noise_multiplier=1.0, batch_size=batch, steps=1, micro_batch=micro_batch)
    rate, randomness = batch / len(examples), Randomness.from_seed(0, "benchmark")
    engine = ClippingEngine(model, 1.0)
    return Step(engine, examples, per_example_cross_entropy, settings, rate, 1.0, randomness, Processes())


def batch_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield time and memory of a step for each batch, measured in a process of its own."""
    for batch in BATCHES:
        command = [sys.executable, __file__, "--one-batch", str(batch), "--repeats", str(repeats)]
        yield json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def one_batch(batch: int, repeats: int) -> dict[str, Any]:
    """Return time and memory of steps of the MNIST network with micro-batches of 256."""
    import torch

    from securesgd.models.networks import network
    from securesgd.training.examples import as_examples

    torch.manual_seed(0)
    data = as_examples((torch.rand(20_000, 1, 28, 28), torch.randint(10, (20_000,))))
    step = _step(network("mnist-cnn", (1, 28, 28), 10), data, batch, BATCH)
    before = _peak_memory()
    measured = timed(step.gradient, repeats)
    memory = {"memory_mb": round((_peak_memory() - before) / 2**20), "before_mb": round(before / 2**20)}
    return {"part": "batch", "examples": 20_000, "batch": batch, "micro_batch": BATCH} | measured | memory


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def accounting_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of all epsilons of a run's ledger, and of its calibration, for each number of steps."""
    from securesgd.privacy import SampledGaussianSteps, calibrated_noise_multiplier, epsilon_spent
    from securesgd.training.settings import TrainingSettings

    rate = 512 / 60_000
    for steps in STEPS:
        block = TrainingSettings(delta=1e-5, epsilon=3.0, batch_size=512, steps=steps).block
        noise = calibrated_noise_multiplier(3.0, 1e-5, rate, steps)
        calibration = timed(
            lambda i, steps=steps: calibrated_noise_multiplier(3.0 + 1e-4 * (i + 1), 1e-5, rate, steps),  # type: ignore[misc]
            repeats,
        )

        def ledger(i: int, steps: int = steps, block: int = block, noise: float = noise) -> None:
            other = noise * (1 + 1e-6 * (i + 1))  # results are kept, so every turn has noise of its own
            for done in range(block, steps + block, block):
                run = SampledGaussianSteps(sampling_rate=rate, noise_multiplier=other, steps=min(done, steps))
                epsilon_spent([run], 1e-5)

        lines = -(-steps // block)
        row = {"part": "accounting", "steps": steps, "lines": lines, "calibration_seconds": calibration["seconds"]}
        yield row | timed(ledger, repeats)


def certify_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of certificates for each number of draws; a network of random weights takes as long as another."""
    import torch

    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings
    from securesgd.models.networks import network
    from securesgd.models.noisy import NoisyNetwork

    torch.manual_seed(0)
    shape = (1, 28, 28)
    model = NoisyNetwork(network("mnist-cnn", shape, 10), shape, place="first-layer").eval()
    inputs, bound = torch.rand(IMAGES, *shape), model.sensitivity("l2")
    for draws in DRAWS:

        def turn(i: int, draws: int = draws) -> None:
            settings = CertifySettings(norm="l2", draws=draws, selection_draws=32, seed=i)
            certify(model, inputs, settings, sensitivity=bound)

        yield {"part": "certify", "images": IMAGES, "draws": draws} | timed(turn, repeats)


MAKERS = {
    "sample": sample_rows,
    "step": step_rows,
    "batch": batch_rows,
    "accounting": accounting_rows,
    "certify": certify_rows,
}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the measurements beside one another, on logarithmic axes; bars are the spread."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 3.4), layout="constrained")
    by_examples, by_batch, memory, by_steps, by_draws = figure.subplots(1, 5)

    def line(axes: Any, part: str, x: str, y: str, label: str) -> None:
        points = sorted((row[x], row[y], row["spread"] / 2) for row in rows if row["part"] == part)
        places, values, spread = zip(*points, strict=True)
        axes.errorbar(places, values, spread if y == "seconds" else None, marker="o", capsize=3, label=label)

    line(by_examples, "sample", "examples", "seconds", "sample")
    line(by_examples, "step", "examples", "seconds", "step, linear network")
    line(by_batch, "batch", "batch", "seconds", "step, MNIST network")
    line(memory, "batch", "batch", "memory_mb", "micro-batches of 256")
    line(by_steps, "accounting", "steps", "seconds", "all lines of the ledger")
    line(by_steps, "accounting", "steps", "calibration_seconds", "calibration")
    line(by_draws, "certify", "draws", "seconds", f"{IMAGES} images, MNIST network")
    by_examples.set(
        xlabel="training examples", ylabel="seconds (processor)", title=f"time, batch {BATCH}", ylim=(1e-5, 1)
    )
    by_batch.set(xlabel="expected batch", ylabel="seconds (processor)", title="time of a step")
    memory.set(xlabel="expected batch", ylabel="MB beyond the start", title="memory of a step")
    by_steps.set(xlabel="steps of the run", ylabel="seconds (processor)", title="accounting of a whole run")
    by_draws.set(xlabel="draws per image", ylabel="seconds (processor)", title="certification")
    for axes in (by_examples, by_batch, by_steps, by_draws):
        axes.set(xscale="log", yscale="log")
    for axes in (by_batch, memory):
        axes.set_xscale("log", base=2)
    by_batch.set_ylim(0.1, 10)
    memory.set_ylim(0, 1.3 * max(row.get("memory_mb", 0) for row in rows))
    for axes in (by_examples, by_batch, memory, by_steps, by_draws):
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Print the rows, or draw those of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MAKERS, nargs="+", default=list(MAKERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one-batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    if given.figure is not None:
        draw([json.loads(line) for line in given.rows.read_text().splitlines()], given.figure)
        return
    if given.one_batch:
        print(json.dumps(one_batch(given.one_batch, given.repeats)))
        return
    import torch

    machine = {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "torch": torch.__version__}
    machine |= {"numpy": version("numpy"), "dp_accounting": version("dp-accounting")}
    for part in given.only:
        for row in MAKERS[part](given.repeats):
            print(json.dumps(row | machine | {"load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()
