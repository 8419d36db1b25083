"""Is the time that `securesgd plan` states the time that training takes? Each preset is planned, then trained.

Each in a process of its own, as commands are. Prints a JSON row per data set and method: planned and measured seconds
(from the configuration to the finished run, data read before), their ratio, and whether the noise multiplier of the
plan is that of the ledger. `--share` trains only a part of the steps and scales the time of the rest.

    python benchmarks/plan.py --share 1.0 digits:dpsgd digits:secure-sgd mnist:secure-sgd mnist:dp-ibp
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def planned(preset: str, threads: int) -> tuple[float, float]:
    """Return the seconds and the noise multiplier of the plan for a preset."""
    import torch

    from securesgd.fitted_config import fitted_config
    from securesgd.planning import plan_run

    torch.set_num_threads(threads)
    fitted = fitted_config(*preset.split(":"))
    training = fitted.config.training
    (row,) = plan_run(
        fitted.config, fitted.examples, fitted.input_shape, fitted.classes,
        batch_sizes=[training.batch_size], steps=[training.steps],
    ).rows  # fmt: skip
    return 60 * float(row.minutes or 0), row.noise_multiplier


def trained(preset: str, threads: int, share: float) -> dict[str, Any]:
    """Return what training the preset took; of a share of the steps, with the time of the others added."""
    import torch

    from securesgd.config import run_config
    from securesgd.data.load import load_data
    from securesgd.privacy.ledger import read_ledger
    from securesgd.run_training import train_run

    torch.set_num_threads(threads)
    config, loaded = run_config(*preset.split(":")), load_data(preset.split(":")[0])
    steps, times = config.training.steps, [time.perf_counter()]
    stop = max(2, round(share * steps))

    def watch(report: Any) -> bool:
        times.append(time.perf_counter())
        return bool(report.step < stop)

    with tempfile.TemporaryDirectory() as folder:
        train_run(config, Path(folder) / "run", loaded=loaded, on_step=watch)
        seconds = time.perf_counter() - times[0] + (steps - stop) * (times[-1] - times[1]) / max(1, len(times) - 2)
        (first, *_) = read_ledger(Path(folder) / "run" / "ledger.jsonl").records
    noise = getattr(first.event, "noise_multiplier", None)
    return {"batch_size": config.training.batch_size, "steps": steps, "trained_steps": stop, "seconds": seconds,
            "noise_multiplier": noise}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Planned against measured time of training; JSON rows.")
    parser.add_argument("presets", nargs="*", default=["digits:dpsgd", "digits:secure-sgd"], help="DATASET:METHOD")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps to train")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
        for preset in options.presets:
            seconds, noise = fresh.apply(planned, (preset, options.threads))
            found = fresh.apply(trained, (preset, options.threads, options.share))
            measured = found.pop("seconds")
            row = {
                "preset": preset, **found, "planned_seconds": round(seconds, 1), "measured_seconds": round(measured, 1),
                "ratio": round(seconds / measured, 3), "same_noise": noise == found["noise_multiplier"],
                "threads": options.threads, "torch": version("torch"), "securesgd": version("securesgd"), "n": 1,
            }  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
