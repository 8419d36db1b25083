"""What first weights from public data know of another data set before the first private step.

    python benchmarks/public_start.py [public_steps …] >> results/presets/public_start.jsonl

Trains tanh-cnn with noise 0.5 at the input on the public digits, and prints one JSON row for each number of steps: the
share of the first 3,000 training images of MNIST whose class most of 30 noisy passes give.
"""

import json
import sys
import time
from importlib.metadata import version

import torch

from securesgd.data.load import load_data
from securesgd.data.public_images import public_examples
from securesgd.models.networks import network
from securesgd.models.noisy import NoisyNetwork
from securesgd.models.predict import accuracy
from securesgd.runtime.machine import keep_memory
from securesgd.training.public_start import learn_from_public

STEPS, NOISE, IMAGES, DRAWS = (1_000, 4_000), 0.5, 3_000, 30
SHAPE, CLASSES = (1, 28, 28), 10


def main() -> None:
    keep_memory()
    mnist = load_data("mnist")
    for steps in [int(word) for word in sys.argv[1:]] or STEPS:
        torch.manual_seed(0)
        model = NoisyNetwork(network("tanh-cnn", SHAPE, CLASSES), SHAPE, norm="l2", radius_per_std=NOISE)
        started = time.process_time()
        learn_from_public(model, *public_examples("digits", SHAPE, CLASSES), steps=steps, seed=0)
        row = {
            "public_dataset": "digits", "public_steps": steps, "network": "tanh-cnn", "noise": NOISE, "seed": 0,
            "images": IMAGES, "draws": DRAWS,
            "accuracy": round(accuracy(model, mnist.train_inputs[:IMAGES], mnist.train_targets[:IMAGES], DRAWS), 4),
            "cpu_seconds": round(time.process_time() - started, 1), "threads": torch.get_num_threads(),
            "versions": {name: version(name) for name in ("securesgd", "torch")},
            "command": f"python benchmarks/public_start.py {steps}",
        }  # fmt: skip
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
