"""A DP-SGD step of this source tree against a step of another one (an earlier release), in turns, as a ratio.

    git worktree add ../earlier v0.1.0
    python benchmarks/releases.py --earlier ../earlier/src

Both trees get the same network, batch, noise multiplier and threads, each in a process of its own; one waits while the
other steps, so that a busy machine slows both. A JSON row per network and batch: the median of the ratios of
neighbouring turns, and the quartiles.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

CASES = (("mnist-cnn", 128), ("mnist-cnn", 512), ("cifar-cnn", 128))
STEPS = 4  # of one turn


def worker(name: str, batch: int) -> None:
    """Step when told to by a line on standard input; answer with the seconds of a turn."""
    import torch
    from torch.nn import functional

    from securesgd.clipping.engine import ClippingEngine
    from securesgd.models.networks import network
    from securesgd.runtime.machine import keep_memory

    keep_memory()
    torch.manual_seed(0)
    shape = (1, 28, 28) if name.startswith("mnist") else (3, 32, 32)
    model, inputs, targets = network(name, shape, 10), torch.rand(batch, *shape), torch.randint(10, (batch,))
    engine, optimizer = ClippingEngine(model, 1.0), torch.optim.SGD(model.parameters(), lr=0.01)
    size, done = sum(p.numel() for p in model.parameters()), 0
    try:
        from securesgd.runtime.grid_release import GridRelease
        from securesgd.runtime.randomness import Randomness

        release, randomness = (
            GridRelease(sensitivity=engine.sensitivity, noise_multiplier=1.0, size=size),
            Randomness.secret(),
        )

        def noisy(sums: list[torch.Tensor]) -> list[torch.Tensor]:
            return release.release(sums, randomness.stream("noise", done), divisor=batch)

    except ImportError:  # release 0.1.0
        from securesgd.training.randomness import Randomness as Earlier

        earlier = Earlier.secret()

        def noisy(sums: list[torch.Tensor]) -> list[torch.Tensor]:
            earlier.add_noise(sums, 1.0, done)
            torch._foreach_div_(sums, batch)
            return sums

    def step() -> None:
        nonlocal done
        result = engine.clipped_sum(inputs, targets, lambda o, t: functional.cross_entropy(o, t, reduction="none"))
        for parameter, gradient in zip(model.parameters(), noisy([*result.gradients.values()]), strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
        done += 1

    for _ in range(70):  # the scheduled checks of the first steps, and the caches
        step()
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(STEPS):
            step()
        print(time.perf_counter() - started, flush=True)


def compare(name: str, batch: int, earlier: Path, turns: int, threads: int) -> dict[str, object]:
    """Return the row of one network and batch size."""
    here = Path(__file__).resolve().parents[1] / "src"
    sides = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", name, str(batch)],
            env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for tree in (here, earlier.resolve())
    ]

    def turn(side: "subprocess.Popen[str]") -> float:
        assert side.stdin is not None
        assert side.stdout is not None
        side.stdin.write("\n")
        side.stdin.flush()
        return float(side.stdout.readline())

    for side in sides:
        turn(side)
    pairs = [(turn(sides[0]), turn(sides[1])) for _ in range(turns)]
    for side in sides:
        side.communicate()
    ratios = [now / before for now, before in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "benchmark": "releases",
        "network": name,
        "batch": batch,
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "milliseconds": round(1e3 * statistics.median(now for now, _ in pairs) / STEPS, 1),
        "milliseconds_earlier": round(1e3 * statistics.median(before for _, before in pairs) / STEPS, 1),
        "turns": turns,
        "steps_per_turn": STEPS,
        "threads": threads,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--earlier", type=Path, help="src folder of the other tree")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker[0], int(options.worker[1]))
        return
    if options.earlier is None:
        print("releases.py needs --earlier, the src folder of another release; skipped", file=sys.stderr)
        return
    for name, batch in CASES:
        print(json.dumps(compare(name, batch, options.earlier, options.turns, options.threads)), flush=True)


if __name__ == "__main__":
    main()
