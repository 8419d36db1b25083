"""What a recipe gives on held-out training images: the search behind the presets.

    python benchmarks/presets.py mnist secure-sgd norm=l2 unit=0.5 epsilon=2.9 copies=4 steps=2000 [name=value …]

Trains on all training images but 5,000, by the preset of the data set, method and norm with the settings given, and
prints one JSON row: accuracy on the 5,000, and for a noisy model what could be proven of the first 2,500 of them: an
estimate from 400 draws of what 10,000 would prove with failure_prob 0.001, which is no certificate. More images tell
recipes apart better than more draws do. The test set is not read. Rows are gathered in results/presets/search.jsonl.
"""

import json
import sys
import tempfile
import time
import tomllib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import beta

from securesgd.certificates.votes import smoothed_votes
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.models.predict import accuracy
from securesgd.run_training import train_run
from securesgd.runtime.machine import keep_memory

HELD_OUT, IMAGES, DRAWS = 5_000, 2_500, 400
PROVING_DRAWS, FAILURE_PROB = 10_000, 0.001
RADII = {"linf": (0.02, 0.04, 0.06, 0.08, 0.1), "l2": (0.1, 0.25, 0.5, 0.75, 1.0, 1.5)}


def measure(dataset: str, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one recipe."""
    keep_memory()
    config = run_config(dataset, method, **{"seed": 0, "noise_seed": 0, "holdout": HELD_OUT} | settings)
    loaded = load_data(config.dataset, holdout=config.holdout, seed=config.seed, settings=config.data)
    images, labels = loaded.holdout_inputs, loaded.holdout_targets
    loaded = replace(loaded, holdout_inputs=None, holdout_targets=None)  # or twenty looks at them are timed, too
    config = replace(config, holdout=0)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = train_run(config, Path(folder) / "run", loaded=loaded)
        spent = run.privacy.accounted_epsilon
    minutes = (time.process_time() - started) / 60
    row = {
        "dataset": dataset, "method": method, **settings, "network": config.network,
        "batch_size": config.training.batch_size, "steps": config.training.steps, "copies": config.training.copies,
        "learning_rate": config.training.learning_rate, "max_grad_norm": config.training.max_grad_norm,
        "ema_decay": config.training.ema_decay, "epsilon_spent": spent,
        "held_out": HELD_OUT, "held_out_accuracy": accuracy(run.model, images, labels, draws=10),
        "train_cpu_minutes": round(minutes, 2), "threads": torch.get_num_threads(),
    }  # fmt: skip
    if config.robustness.norm in RADII and hasattr(run.model, "noisy"):
        norm = config.robustness.norm
        votes = smoothed_votes(run.model, images[:IMAGES], DRAWS)
        right = votes.argmax(1) == labels[:IMAGES].numpy()
        counted = votes.max(1) / DRAWS * PROVING_DRAWS
        p_lower = beta.ppf(FAILURE_PROB, counted, PROVING_DRAWS - counted + 1)
        radius = right * np.maximum(0, ndtri(p_lower)) / run.model.sensitivity(norm).upper
        row |= {
            "images": IMAGES, "draws": DRAWS, "smoothed_accuracy": float(right.mean()),
            "estimated": {f"{r:g}": round(float((radius >= r).mean()), 4) for r in RADII[norm]},
            "estimated_mean_radius": round(float(radius.mean()), 5),
        }  # fmt: skip
    return row | {
        "versions": {name: version(name) for name in ("securesgd", "torch")},
        "command": f"python benchmarks/presets.py {' '.join(sys.argv[1:])}",
    }


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in word for word in sys.argv[3:]):
        sys.exit(f"usage: {__doc__}".split("\n\n")[1].strip())
    pairs = (word.partition("=") for word in sys.argv[3:])
    given = {}
    for name, _, value in pairs:
        try:
            given[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            given[name] = value  # a word
    print(json.dumps(measure(sys.argv[1], sys.argv[2], given)), flush=True)
