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
share       seconds of all epsilons of the MNIST preset's run and of its calibration, against those of all its steps
certify     seconds of the l2 certificates of 4 images, MNIST network with noise in its first layer, against the draws
processes   seconds by the clock of the l2 certificates of 32 such images at 512 draws, against torchrun's processes

`seconds` of the processor is the median over `n` measurements, `spread` the distance between their quartiles;
`clock_seconds` by the clock are more on a busy machine, and `load` says how busy: the average number of processes that
wanted a core, this one among them. Run it with OMP_NUM_THREADS=1, so that both kinds of seconds mean the same.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

BATCH = 256
EXAMPLES = [10**power for power in range(4, 9)]
BATCHES = [256, 512, 1024, 2048, 4096]
STEPS = [100, 1000, 10_000, 100_000]
DRAWS = [128, 512, 2048, 8192]
IMAGES = 4
SHARED_IMAGES, SHARED_DRAWS = 32, 512
PROCESSES = [1, 2]


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
        step = dpsgd_step(model, Repeated(examples), BATCH, None)
        yield {"part": "step", "examples": examples, "batch": BATCH} | timed(step.gradient, repeats)


def dpsgd_step(model: Any, examples: Any, batch: int, micro_batch: int | None) -> Any:
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
    step = dpsgd_step(network("mnist-cnn", (1, 28, 28), 10), data, batch, BATCH)
    before = peak_memory()
    measured = timed(step.gradient, repeats)
    memory = {"memory_mb": round((peak_memory() - before) / 2**20), "before_mb": round(before / 2**20)}
    return {"part": "batch", "examples": 20_000, "batch": batch, "micro_batch": BATCH} | measured | memory


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def accounting_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of all epsilons of a run's ledger, and of its calibration, for each number of steps."""
    from securesgd.privacy import calibrated_noise_multiplier
    from securesgd.training.settings import TrainingSettings

    rate = 512 / 60_000
    for steps in STEPS:
        block = TrainingSettings(delta=1e-5, epsilon=3.0, batch_size=512, steps=steps).block
        calibration = timed(
            lambda i, steps=steps: calibrated_noise_multiplier(3.0 + 1e-4 * (i + 1), 1e-5, rate, steps),  # type: ignore[misc]
            repeats,
        )

        lines = -(-steps // block)
        row = {"part": "accounting", "steps": steps, "lines": lines, "calibration_seconds": calibration["seconds"]}
        yield row | timed(_ledger(rate, steps, block, 3.0, 1e-5), repeats)


def _ledger(rate: float, steps: int, block: int, epsilon: float, delta: float) -> Callable[[int], None]:
    """Return what computes the epsilons of all lines of a run's ledger."""
    from securesgd.privacy import SampledGaussianSteps, calibrated_noise_multiplier, epsilon_spent

    noise = calibrated_noise_multiplier(epsilon, delta, rate, steps)

    def ledger(i: int) -> None:
        other = noise * (1 + 1e-6 * (i + 1))  # results are kept, so every turn has noise of its own
        for done in range(block, steps + block, block):
            run = SampledGaussianSteps(sampling_rate=rate, noise_multiplier=other, steps=min(done, steps))
            epsilon_spent([run], delta)

    return ledger


def certify_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of certificates for each number of draws; a network of random weights takes as long as another."""
    import torch

    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings

    model = _certified_network()
    inputs, bound = torch.rand(IMAGES, 1, 28, 28), model.sensitivity("l2")
    for draws in DRAWS:

        def turn(i: int, draws: int = draws) -> None:
            settings = CertifySettings(norm="l2", draws=draws, selection_draws=32, seed=i)
            certify(model, inputs, settings, sensitivity=bound)

        yield {"part": "certify", "images": IMAGES, "draws": draws} | timed(turn, repeats)


def share_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield what part of a training by the MNIST preset is accounting: lines of the ledger and calibration by steps."""
    import torch

    from securesgd.config import run_config
    from securesgd.models.networks import network
    from securesgd.privacy import calibrated_noise_multiplier
    from securesgd.training.examples import as_examples

    config = run_config("mnist", "dpsgd")
    training = config.training
    rate, steps = training.batch_size / 60_000, training.steps
    ledger = timed(_ledger(rate, steps, training.block, training.epsilon, training.delta), repeats)
    calibration = timed(
        lambda i: calibrated_noise_multiplier(training.epsilon + 1e-4 * (i + 1), training.delta, rate, steps), repeats
    )
    data = as_examples((torch.rand(20_000, 1, 28, 28), torch.randint(10, (20_000,))))
    step = dpsgd_step(network(config.network, (1, 28, 28), 10), data, training.batch_size, training.micro_batch)
    measured = timed(step.gradient, repeats)
    accounting = ledger["seconds"] + calibration["seconds"]
    row = {"part": "share", "batch": training.batch_size, "steps": steps, "step_seconds": measured["seconds"]}
    row |= {"ledger_seconds": ledger["seconds"], "calibration_seconds": calibration["seconds"], "n": repeats}
    yield row | {"share": accounting / (accounting + steps * measured["seconds"])}


def process_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of certificates that processes of torchrun share; starting them is not counted."""
    import torch

    import securesgd as ss

    with tempfile.TemporaryDirectory() as place:
        model = _certified_network()
        data = (torch.rand(64, 1, 28, 28), torch.arange(64) % 10)
        ss.train(model, data, out=f"{place}/run", noise_multiplier=1.0, delta=1e-3, batch_size=16, steps=1)
        for count in PROCESSES:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
            command = [*launcher, __file__, "--one-share", f"{place}/run", "--repeats", str(repeats)]
            yield json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _certified_network() -> Any:
    import torch

    from securesgd.models.networks import network
    from securesgd.models.noisy import NoisyNetwork

    torch.manual_seed(0)
    bare = network("mnist-cnn", (1, 28, 28), 10)
    return NoisyNetwork(bare, (1, 28, 28), norm="l2", radius_per_std=0.3, place="first-layer").eval()


def one_share(folder: str, repeats: int) -> dict[str, Any] | None:
    """Return the time of certificates by the processes of this job; None on all but the first."""
    import torch

    from securesgd.models.networks import network
    from securesgd.run import load_run
    from securesgd.runtime.processes import process_group

    torch.manual_seed(0)  # the same images in all processes
    with process_group() as processes:
        run = load_run(folder, network=network("mnist-cnn", (1, 28, 28), 10))
        data = (torch.rand(SHARED_IMAGES, 1, 28, 28), torch.arange(SHARED_IMAGES) % 10)
        measured = timed(
            lambda i: run.certify(data, norms="l2", draws=SHARED_DRAWS, selection_draws=32, again=True), repeats
        )
    row = {"part": "processes", "processes": processes.count, "images": SHARED_IMAGES, "draws": SHARED_DRAWS}
    return row | measured if processes.is_first else None


MAKERS = {
    "sample": sample_rows,
    "step": step_rows,
    "batch": batch_rows,
    "accounting": accounting_rows,
    "share": share_rows,
    "certify": certify_rows,
    "processes": process_rows,
}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the measurements beside one another, on logarithmic axes; bars are the spread."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.6), layout="constrained")
    by_examples, by_batch, memory, by_steps, by_draws, by_processes = figure.subplots(2, 3).flat

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
    line(by_processes, "processes", "processes", "clock_seconds", f"{SHARED_IMAGES} images, {SHARED_DRAWS} draws")
    alone = next(row["clock_seconds"] for row in rows if row["part"] == "processes" and row["processes"] == 1)
    by_processes.plot(PROCESSES, [alone / count for count in PROCESSES], ":", color="grey", label="if shared perfectly")
    by_examples.set(
        xlabel="training examples", ylabel="seconds (processor)", title=f"time, batch {BATCH}", ylim=(1e-5, 1)
    )
    by_batch.set(xlabel="expected batch", ylabel="seconds (processor)", title="time of a step")
    memory.set(xlabel="expected batch", ylabel="MB beyond the start", title="memory of a step")
    by_steps.set(xlabel="steps of the run", ylabel="seconds (processor)", title="accounting of a whole run")
    by_draws.set(xlabel="draws per image", ylabel="seconds (processor)", title="certification by draws")
    by_processes.set(xlabel="processes of torchrun", ylabel="seconds (clock)", title="certification by processes")
    by_processes.set(xticks=PROCESSES, ylim=(0, 1.4 * alone))
    for axes in (by_examples, by_batch, by_steps, by_draws):
        axes.set(xscale="log", yscale="log")
    for axes in (by_batch, memory):
        axes.set_xscale("log", base=2)
    by_batch.set_ylim(0.1, 10)
    memory.set_ylim(0, 1.3 * max(row.get("memory_mb", 0) for row in rows))
    for axes in (by_examples, by_batch, memory, by_steps, by_draws, by_processes):
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def print_rows(parts: Iterable[Iterable[dict[str, Any]]]) -> None:
    """Print the rows of all parts as JSON, each with the machine and how busy it was."""
    import torch

    machine = {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "torch": torch.__version__}
    machine |= {"numpy": version("numpy"), "dp_accounting": version("dp-accounting")}
    for row in itertools.chain.from_iterable(parts):
        print(json.dumps(row | machine | {"load": os.getloadavg()[0]}), flush=True)


def main() -> None:
    """Print the rows, or draw those of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MAKERS, nargs="+", default=list(MAKERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one-batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one-share", help=argparse.SUPPRESS)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    if given.figure is not None:
        draw([json.loads(line) for line in given.rows.read_text().splitlines()], given.figure)
        return
    if given.one_batch:
        print(json.dumps(one_batch(given.one_batch, given.repeats)))
        return
    if given.one_share:
        shared = one_share(given.one_share, given.repeats)
        print(json.dumps(shared) if shared else "", end="")
        return
    print_rows(MAKERS[part](given.repeats) for part in given.only)


if __name__ == "__main__":
    main()
