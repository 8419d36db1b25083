"""One training step: plain SGD, our clipping engine, Opacus ghost clipping, Opacus hooks; others if asked for.

Every contender does the same work: forward, backward, per-example clipping and noise where private, optimizer step.
`gradient` and `clipped-sum` are the forward and backward pass of the first two alone, `ibp` and `dp-ibp` steps with
interval bounds, `compiled-sgd` those of a module given to torch.compile, `bfloat16-…` steps with passes in bfloat16,
`jax-…` those of another Python (`jax_step.py`).
Each runs in its own process, so that its peak memory is its own; the processes take turns, so that a noisy machine
slows all of them alike. A turn is some steps in a row, as in training; the first, which finds the caches full of
others' data, is not timed. Prints one JSON row per network, batch size and contender:

    python benchmarks/dpsgd_step.py --nets mnist --batches 128 --repeats 10
    python benchmarks/dpsgd_step.py --nets mnist cifar resnet transformer --batches 128 --threads 1
    python benchmarks/dpsgd_step.py --nets mnist --contenders sgd gradient clipped-sum --threads 1
    python benchmarks/dpsgd_step.py --nets interval --batches 256 --contenders ibp dp-ibp
    python benchmarks/dpsgd_step.py --nets mnist --contenders sgd ours jax-loop --jax-python FOLDER/bin/python

median_ms and spread_ms (distance between the quartiles) are over `n` turns of `steps_per_turn` timed steps each, after
`warmup` turns;
ratio_to_sgd is the median over turns of this contender's time divided by plain SGD's in the same turn, ratio_to_… by
that of another contender without privacy;
cpu_ms, cpu_spread_ms and cpu_ratio_to_… are the same in processor seconds, which other work on the machine moves less;
with one thread they are about what an idle machine would take. load is the machine's average load at the end.
peak_rss_mb is the most memory the process ever held, interpreter and libraries included (start_rss_mb before the
first step). Plain SGD runs in both memory formats first and keeps the faster one. Opacus gets its own layers in the
place of attention and LSTM; where it cannot run a network, its row says so (`failed`) and has no times. So do rows of
jax where the other Python does not have it.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

NETS = {
    "mnist": ("mnist-cnn", (1, 28, 28)),
    "cifar": ("cifar-cnn", (3, 32, 32)),
    "interval": ("interval-cnn", (1, 28, 28)),
    "resnet": ("resnet", (3, 32, 32)),
    "vit": ("vit", (3, 32, 32)),
    "transformer": ("transformer", (64,)),  # words
    "lstm": ("lstm", (64,)),
}
JAX = ("jax-sgd", "jax-vmap", "jax-loop", "jax-privacy")
BFLOAT16 = ("bfloat16-sgd", "bfloat16-ours")
CONTENDERS = (
    "sgd", "ours", "opacus-ghost", "opacus-hooks", "gradient", "clipped-sum", "compiled-sgd", *BFLOAT16, "ibp",
    "dp-ibp", *JAX,
)  # fmt: skip
BASES = ("sgd", "gradient", "ibp", "jax-sgd")
NOISE_MULTIPLIER, MAX_GRAD_NORM, LEARNING_RATE = 1.0, 1.0, 0.05


def make_step(contender: str, net: str, batch: int) -> Callable[[], None]:
    """Return a function that does one training step on fixed random data."""
    if contender in JAX:
        from jax_step import make_jax_step

        return make_jax_step(contender, net, batch)

    import torch
    from step_networks import NETWORKS
    from torch import nn
    from torch.nn import functional

    from securesgd.models.interval_network import IntervalNetwork
    from securesgd.models.networks import network

    torch.manual_seed(0)
    name, shape = NETS[net]

    def fresh() -> nn.Module:
        return NETWORKS[name]() if name in NETWORKS else network(name, shape, 10)

    model = fresh()
    is_text = len(shape) == 1
    inputs = torch.randint(1000, (batch, *shape)) if is_text else torch.rand(batch, *shape)
    targets = torch.randint(10, (batch,))
    generator = torch.Generator().manual_seed(0)

    def optimizer_of(model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    if contender in ("sgd", "gradient", "compiled-sgd", "bfloat16-sgd"):

        def formatted(memory_format: torch.memory_format) -> Callable[[], None]:
            net = fresh().to(memory_format=memory_format)
            if contender == "compiled-sgd":
                net = torch.compile(net)
            images = inputs if is_text else inputs.contiguous(memory_format=memory_format)
            optimizer = optimizer_of(net)

            def step() -> None:
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=contender == "bfloat16-sgd"):
                    outputs = net(images)
                functional.cross_entropy(outputs.float(), targets).backward()
                if contender != "gradient":
                    optimizer.step()

            return step

        steps = [formatted(f) for f in (torch.contiguous_format, torch.channels_last)]
        return min(steps, key=lambda step: min(timed(step) for _ in range(4)))

    def entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    loss = entropy
    if contender in ("ibp", "dp-ibp"):
        model = IntervalNetwork(model, shape, steps=1, warm_up=0.0, ramp=0.0).train()
        loss = model.loss
    if contender == "ibp":
        optimizer = optimizer_of(model)

        def ibp() -> None:
            optimizer.zero_grad()
            loss(model(inputs), targets).mean().backward()
            optimizer.step()

        return ibp

    if contender in ("ours", "clipped-sum", "bfloat16-ours", "dp-ibp"):
        from securesgd.clipping.engine import ClippingEngine
        from securesgd.runtime.grid_release import GridRelease
        from securesgd.runtime.randomness import Randomness

        precision = "bfloat16" if contender == "bfloat16-ours" else "float32"
        engine = ClippingEngine(model, max_grad_norm=MAX_GRAD_NORM, precision=precision)
        optimizer, randomness, turn = optimizer_of(model), Randomness.secret(), itertools.count()
        size = sum(p.numel() for p in model.parameters())
        release = GridRelease(sensitivity=engine.sensitivity, noise_multiplier=NOISE_MULTIPLIER, size=size)

        def ours() -> None:
            result = engine.clipped_sum(inputs, targets, loss)
            if contender == "clipped-sum":
                return
            noise = randomness.stream("noise", next(turn))
            released = release.release([*result.gradients.values()], noise, divisor=batch)
            for parameter, gradient in zip(model.parameters(), released, strict=True):
                parameter.grad = gradient.to(parameter.dtype)
            optimizer.step()

        return ours

    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    model = ModuleValidator.fix(model).train()  # puts its own layers in the place of attention and LSTM
    ghost = contender == "opacus-ghost"
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer_of(model),
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=batch),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
        poisson_sampling=False,
        noise_generator=generator,
        **({"criterion": nn.CrossEntropyLoss(), "grad_sample_mode": "ghost"} if ghost else {}),
    )
    private, private_optimizer = made[0], made[1]
    criterion = made[2] if ghost else nn.CrossEntropyLoss()

    def opacus() -> None:
        private_optimizer.zero_grad()
        criterion(private(inputs), targets).backward()
        private_optimizer.step()

    return opacus


def timed(step: Callable[[], None]) -> float:
    """Return the seconds one step takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def rss_mb(peak: bool) -> float:
    """Return the memory of this process, now or at its peak."""
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def serve(contender: str, net: str, batch: int, threads: int) -> None:
    """Run one contender: a turn of as many steps as each line on standard input says.

    On standard output, the versions used, then seconds and processor seconds per step.
    """
    import warnings

    warnings.filterwarnings("ignore")
    packages = ("jax", "jaxlib", "jax-privacy") if contender in JAX else ("securesgd", "torch", "opacus")
    start = 0.0
    try:
        if contender not in JAX:
            import torch

            torch.set_num_threads(threads)
            torch.rand(8, 8) @ torch.rand(8, 8)
        start = rss_mb(peak=False)
        step = make_step(contender, net, batch)
        step()
    except (ImportError, NotImplementedError, RuntimeError) as error:
        if not contender.startswith(("opacus", "jax")):
            raise
        print(json.dumps({"failed": str(error).splitlines()[0]}), flush=True)  # it has no rule for this network
        return
    print(json.dumps({"versions": {name: version_of(name) for name in packages}}), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        step()
        steps, processor = int(line), time.process_time()
        wall = sum(timed(step) for _ in range(steps))
        print(json.dumps([wall / steps, (time.process_time() - processor) / steps]), flush=True)
    print(json.dumps({"peak_rss_mb": round(rss_mb(peak=True), 1), "start_rss_mb": round(start, 1)}), flush=True)


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def compete(
    net: str, batch: int, contenders: list[str], repeats: int, warmup: int, threads: int, steps: int, jax_python: str
) -> list[dict[str, Any]]:
    """Return one row per contender for one network and batch size."""
    # Without binding, the two threads of a small step may share one core and the timing is of the scheduler.
    # glibc gives large buffers back to the system after every step and gets them anew, page by page: a quarter of the
    # time of a small step. All contenders are spared that, as `securesgd` spares its users (runtime/machine.py).
    environment = os.environ | {
        "OMP_PROC_BIND": "true",
        "OMP_NUM_THREADS": str(threads),
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**32),
    }
    if threads == 1:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    command = [__file__, "--net", net, "--batch", str(batch), "--threads", str(threads), "--serve"]
    processes = {
        c: subprocess.Popen(
            [jax_python if c in JAX else sys.executable, *command, c],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for c in contenders
    }  # fmt: skip

    def answer(contender: str, request: str | None) -> str:
        process = processes[contender]
        assert process.stdin is not None
        assert process.stdout is not None
        if request is not None:
            process.stdin.write(request + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{contender} on {net} at batch {batch} failed")
        return line

    started = {c: json.loads(answer(c, None)) for c in contenders}
    failed = {c: first for c, first in started.items() if "failed" in first}
    rows = [{"net": net, "batch": batch, "contender": c, **failure} for c, failure in failed.items()]
    contenders = [c for c in contenders if c not in failed]
    seconds: dict[str, list[float]] = {c: [] for c in contenders}
    processor: dict[str, list[float]] = {c: [] for c in contenders}
    for turn in range(warmup + repeats):
        for contender in contenders:
            took, used = json.loads(answer(contender, str(steps)))
            if turn >= warmup:
                seconds[contender].append(took)
                processor[contender].append(used)
    for contender in contenders:
        memory = json.loads(answer(contender, "end"))
        processes[contender].wait()
        times, used = seconds[contender], processor[contender]
        ratios = {
            f"{kind}ratio_to_{base}": round(median_ratio(values[contender], values[base]), 3)
            for kind, values in (("", seconds), ("cpu_", processor))
            for base in BASES
            if base in values
        }
        rows.append(
            {
                "net": net,
                "batch": batch,
                "contender": contender,
                "median_ms": round(statistics.median(times) * 1e3, 2),
                "spread_ms": round(spread(times) * 1e3, 2),
                "cpu_ms": round(statistics.median(used) * 1e3, 2),
                "cpu_spread_ms": round(spread(used) * 1e3, 2),
                **ratios,
                **memory,
                "n": repeats,
                "steps_per_turn": steps,
                "warmup": warmup,
                "threads": threads,
                "load": round(os.getloadavg()[0], 1),
                **started[contender]["versions"],
            }
        )
    return rows


def spread(times: list[float]) -> float:
    """Return the distance between the quartiles."""
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return quartiles[2] - quartiles[0]


def median_ratio(times: list[float], base: list[float]) -> float:
    """Return the median over turns of the time divided by that of `base` in the same turn."""
    return statistics.median(a / b for a, b in zip(times, base, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time one DP-SGD step of each contender; JSON rows on standard output."
    )
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), default=["mnist", "cifar"])
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS[:4]))
    parser.add_argument("--repeats", type=int, default=15, help="turns per contender")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="timed steps per turn, after one that is not timed")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--jax-python", default=sys.executable, help="the Python that has jax, for contenders jax-…")
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--net", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.net, options.batch, options.threads)
        return
    for net in options.nets:
        for batch in options.batches:
            turns = options.repeats, options.warmup, options.threads, options.steps, options.jax_python
            for row in compete(net, batch, options.contenders, *turns):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
