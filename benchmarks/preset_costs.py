"""Processor minutes and peak memory of every preset, on one thread.

    python benchmarks/preset_costs.py [--only cifar10] [--method dp-ibp] > results/presets/costs.jsonl

Each preset is trained twice, for 3 and for 9 of its steps (103 on digits), each time in a process of its own: the
difference is what steps take, the rest is paid once (reading, features that are kept, the look at the test set). The
minutes of a row are those of all of the preset's steps. Memory is the peak of the longer of the two.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

SHORT, MORE = 3, {"digits": 100}
_MORE = 6
DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")


def presets() -> list[tuple[str, str, str | None]]:
    """Return data set, method and norm of every preset; sgd and dpsgd have no norm."""
    from securesgd.methods import METHODS

    return [
        (dataset, name, norm)
        for dataset in DATASETS
        for name, method in METHODS.items()
        for norm in (("linf", "l2") if method.noisy else (None,))
    ]


def train(dataset: str, method: str, norm: str | None, steps: int) -> dict[str, float]:
    """Train so many steps of a preset in this process; return processor seconds and peak memory."""
    from securesgd.config import run_config
    from securesgd.run_training import train_run
    from securesgd.runtime.machine import keep_memory

    keep_memory()
    settings: dict[str, Any] = {"seed": 0, "noise_seed": 0, "steps": steps} | ({"norm": norm} if norm else {})
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        train_run(run_config(dataset, method, **settings), Path(folder) / "run")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.process_time() - started, "peak_memory_mb": peak}


def cost(dataset: str, method: str, norm: str | None) -> dict[str, Any]:
    """Return the row of one preset."""
    from securesgd.config import run_config

    training = run_config(dataset, method, seed=0, **({"norm": norm} if norm else {})).training
    measured = {}
    more = MORE.get(dataset, _MORE)
    for steps in (SHORT, SHORT + more):
        words = [sys.executable, __file__, "--train", dataset, method, norm or "none", str(steps)]
        done = subprocess.run(
            words, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
        )
        measured[steps] = json.loads(done.stdout)
    each = (measured[SHORT + more]["seconds"] - measured[SHORT]["seconds"]) / more
    once = measured[SHORT]["seconds"] - SHORT * each
    return {
        "dataset": dataset, "method": method, "norm": norm, "batch_size": training.batch_size,
        "copies": training.copies, "steps": training.steps, "seconds_once": round(once, 2),
        "seconds_per_step": round(each, 4), "cpu_minutes": round((once + training.steps * each) / 60, 2),
        "peak_memory_mb": round(measured[SHORT + more]["peak_memory_mb"]), "threads": 1,
        "versions": {name: version(name) for name in ("securesgd", "torch")},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=DATASETS)
    parser.add_argument("--method", action="append", help="only this one; may be given several times")
    parser.add_argument("--train", nargs=4, metavar=("DATASET", "METHOD", "NORM", "STEPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        dataset, method, norm, steps = arguments.train
        print(json.dumps(train(dataset, method, None if norm == "none" else norm, int(steps))))
        return
    for dataset, method, norm in presets():
        if arguments.only in (None, dataset) and (arguments.method is None or method in arguments.method):
            print(json.dumps(cost(dataset, method, norm)), flush=True)


if __name__ == "__main__":
    main()
