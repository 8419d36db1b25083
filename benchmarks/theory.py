"""Speed of the mathematics: vectorised calibration and the two sensitivity examples. Prints JSON rows.

Run: python benchmarks/theory.py. No peer does the sensitivity of a whole layer; the peer of the calibration is
dp-accounting's scalar function, called in a loop on fewer pairs and reported per pair.
"""

import json
import os
import time

import numpy as np
from dp_accounting import get_sigma_gaussian

from securesgd.runtime.machine import environment
from securesgd.theory import Convolution, noise_multiplier, sensitivity


def timed(function):
    started = time.perf_counter()
    result = function()
    return result, time.perf_counter() - started


def main():
    rng = np.random.default_rng(0)
    epsilon, delta = 10 ** rng.uniform(-2, 1, 100_000), 10 ** rng.uniform(-12, -1, 100_000)
    shared = {"threads": os.cpu_count(), "versions": environment()["versions"]}
    ours = min(timed(lambda: noise_multiplier(epsilon, delta))[1] for _ in range(5))
    pairs = list(zip(epsilon[:500], delta[:500], strict=True))
    peer = min(timed(lambda: [get_sigma_gaussian(e, d) for e, d in pairs])[1] for _ in range(3)) / 500 * 100_000
    for contender, seconds, n in (("ours", ours, 100_000), ("dp-accounting", peer, 500)):
        row = {
            "benchmark": "analytic calibration",
            "contender": contender,
            "n": n,
            "seconds_per_100k": round(seconds, 3),
        }
        print(json.dumps(row | {"ratio": round(seconds / ours, 1)} | shared))
    for shape, image, padding in (((32, 1, 5, 5), (1, 28, 28), 2), ((128, 3, 3, 3), (3, 32, 32), 1)):
        kernel = rng.normal(scale=0.1, size=shape)
        for norm in ("l1", "l2", "linf"):
            result = sensitivity(Convolution(kernel, image, padding=padding), norm)
            row = {"benchmark": "sensitivity", "kernel": shape, "image": image, "norm": norm, "n": 1}
            row |= {"lower": round(result.lower, 3), "upper": round(result.upper, 3), "method": result.method}
            print(json.dumps(row | {"seconds": round(result.seconds, 2)} | shared))


if __name__ == "__main__":
    main()
