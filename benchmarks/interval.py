"""Certifying MNIST images within l_inf radii: interval bounds, boxes with linear bounds, and smoothing by votes.

The question is the same for all: which radius is proven for each image? Smoothing is also asked whether `--radius` is
proven, which is easier: it may stop drawing early. The models are runs of `securesgd train` (methods dp-ibp and
secure-sgd); without `--run` and `--smoothed` both are trained for a minute first. Prints a JSON row per contender:

    python benchmarks/interval.py --run runs/interval --smoothed runs/smoothed --images 10000 --voted 100

seconds is the time for `images` images, per_image_ms that of one; certified the share right and proven at the radius.
"""

import argparse
import json
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

QUICK: dict[str, dict[str, Any]] = {
    "dp-ibp": {"steps": 60, "batch_size": 512},
    "secure-sgd": {"steps": 60, "batch_size": 512, "copies": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time l_inf certificates of both families; JSON rows.")
    parser.add_argument("--run", type=Path, help="a finished run of the method dp-ibp or ibp on MNIST")
    parser.add_argument("--smoothed", type=Path, help="a finished run of the method secure-sgd on MNIST")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--voted", type=int, default=20, help="images that smoothing is asked about")
    parser.add_argument("--radius", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    import torch

    import securesgd as ss
    from securesgd.config import run_config
    from securesgd.run_training import train_run

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:

        def model_of(path: Path | None, method: str) -> Any:
            if path is not None:
                return ss.load_run(path)
            return train_run(run_config("mnist", method, **QUICK[method]), Path(folder) / method)

        boxes, smoothed = model_of(options.run, "dp-ibp"), model_of(options.smoothed, "secure-sgd")
        contenders: dict[str, tuple[Any, int, dict[str, Any]]] = {
            "boxes": (boxes, options.images, {"bounds": "interval"}),
            "boxes and linear bounds": (boxes, options.images, {"bounds": "best"}),
            "10,000 votes": (smoothed, options.voted, {"draws": 10_000, "seed": 0}),
            "votes until the answer": (smoothed, options.voted, {"draws": 10_000, "seed": 0, "radius": options.radius}),
        }
        for name, (run, images, settings) in contenders.items():
            inputs, targets = run.data.test_inputs[:images], run.data.test_targets[:images].numpy()
            started = time.perf_counter()
            found = ss.certify(run.model, inputs, ss.CertifySettings(norm="linf", **settings))
            seconds = time.perf_counter() - started
            right = (found.prediction == targets) & ~found.abstained
            row = {
                "contender": name,
                "images": images,
                "seconds": round(seconds, 2),
                "per_image_ms": round(1000 * seconds / images, 3),
                "radius": options.radius,
                "certified": round(float((right & (found.radius["tight"] >= options.radius)).mean()), 4),
                "n": 1,
                "threads": options.threads,
                "torch": version("torch"),
                "securesgd": version("securesgd"),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
