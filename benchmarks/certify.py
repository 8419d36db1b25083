"""Certification: our votes against a plain loop at a fixed number of draws, and draws saved by stopping early.

    python benchmarks/certify.py --repeats 7
    python benchmarks/certify.py --only stopping --run runs/mnist --radii 0.02,0.04,0.06

Speed, per network (`speed` rows; each contender in a process of its own, the processes take turns, medians over turns):

    plain                 Cohen et al. 2019: repeat x, whole forward pass with fresh noise, count. Its batch size is the
                          fastest of 64, 256 and 1,024, found before the first turn
    plain-channels-last   the same with the network in channels-last format, which a plain program does not think of
    rest                  bare forward passes of the rest of the network, no noise, no counting: the floor
    ours                  `certify` from start to end, on 32 examples that share a stream, as a run of 500 has them

examples_per_s is for `draws` draws per example; ratio is ours to the contender's (median over turns of the ratio).

Stopping (`stopping` rows): the question "is the radius at least this?" on a trained model, against all draws.
same_decisions is the share of examples with the same answer; fixed_twice the same share between two seeds of all draws.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

NETS = {"mnist-cnn": "first-layer", "tanh-cnn": "input"}
CONTENDERS = ("plain", "plain-channels-last", "rest", "ours")
DRAWS = {"mnist-cnn": 512, "tanh-cnn": 2048}
EXAMPLES, PLAIN_EXAMPLES, SELECTION = 32, 4, 32
SHAPE = (1, 28, 28)


def make_turn(contender: str, net: str) -> tuple[Callable[[], None], int]:
    """Return a function that certifies some examples with a fixed number of draws each, and how many."""
    import numpy as np
    import torch

    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings
    from securesgd.certificates.votes import draws_per_pass, stream_of
    from securesgd.models.networks import network
    from securesgd.models.noisy import NoisyNetwork
    from securesgd.models.split_network import SplitNetwork

    torch.manual_seed(0)
    model = NoisyNetwork(network(net, SHAPE, 10), SHAPE, place=NETS[net])  # type: ignore[arg-type]
    model.eval()
    inputs = torch.rand(EXAMPLES, *SHAPE)
    if contender == "ours":
        everyone = np.arange(500)
        indices = everyone[np.lexsort((everyone, stream_of(everyone)))][:EXAMPLES]
        bound = model.sensitivity("l2")
        settings = CertifySettings(norm="l2", draws=DRAWS[net], selection_draws=SELECTION, seed=0)
        return lambda: certify(model, inputs, settings, indices=indices, sensitivity=bound) and None, EXAMPLES
    if contender == "rest":
        split = SplitNetwork(model)
        rows = draws_per_pass(split)
        with torch.inference_mode():
            h = split.clean(inputs[:1]) + split.spread(torch.randn(rows, *split.noise_shape))

        @torch.inference_mode()
        def rest() -> None:
            for _ in range(PLAIN_EXAMPLES * (DRAWS[net] + SELECTION) // rows):
                split.outputs(h)

        return rest, PLAIN_EXAMPLES
    if contender == "plain-channels-last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def plain(batch: int, examples: int = PLAIN_EXAMPLES) -> None:
        for x in inputs[:examples]:
            counts, left = torch.zeros(10, dtype=torch.long), DRAWS[net] + SELECTION
            while left > 0:
                size = min(left, batch)
                counts += torch.bincount(model(x.repeat(size, 1, 1, 1)).argmax(1), minlength=10)
                left -= size

    best = min((64, 256, 1024), key=lambda batch: min(timed(lambda: plain(batch, 1)) for _ in range(3)))
    return lambda: plain(best), PLAIN_EXAMPLES


def timed(action: Callable[[], None]) -> float:
    """Return the seconds it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def serve(contender: str, net: str, threads: int) -> None:
    """Run one contender: a turn for every line on standard input, its examples per second on standard output."""
    import torch

    torch.set_num_threads(threads)
    turn, examples = make_turn(contender, net)
    turn()
    for line in sys.stdin:
        if line.strip() == "end":
            break
        print(examples / timed(turn), flush=True)


def speed(net: str, repeats: int, threads: int) -> list[dict[str, Any]]:
    """Return one row per contender."""
    environment = os.environ | {
        "OMP_PROC_BIND": "true",
        "OMP_NUM_THREADS": str(threads),
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**32),
    }
    command = [sys.executable, __file__, "--net", net, "--threads", str(threads), "--serve"]
    processes = {
        c: subprocess.Popen([*command, c], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for c in CONTENDERS
    }

    def rate(contender: str) -> float:
        process = processes[contender]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("turn\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    turns = [{c: rate(c) for c in CONTENDERS} for _ in range(repeats + 1)][1:]
    for process in processes.values():
        process.communicate("end\n")
    rows = []
    for contender in CONTENDERS:
        rates = [turn[contender] for turn in turns]
        quartiles = statistics.quantiles(rates, n=4) if len(rates) > 1 else [rates[0]] * 3
        rows.append(
            {
                "benchmark": "speed",
                "net": net,
                "noise": NETS[net],
                "contender": contender,
                "examples_per_s": round(statistics.median(rates), 3),
                "spread": round(quartiles[2] - quartiles[0], 3),
                "ratio": round(statistics.median(turn["ours"] / turn[contender] for turn in turns), 3),
                "draws": DRAWS[net] + SELECTION,
                "draws_mean": DRAWS[net] + SELECTION,
                "n": repeats,
                "threads": threads,
                "torch": version("torch"),
                "numpy": version("numpy"),
            }
        )
    return rows


def trained_digits() -> tuple[Any, Any, Any]:
    """Return (model, test inputs, test targets): digits with equal noise on every pixel, trained for seconds."""
    import numpy as np
    import torch

    from securesgd.data.load import load_data
    from securesgd.models.networks import network
    from securesgd.models.noisy import NoisyNetwork

    data = load_data("digits")
    torch.manual_seed(0)
    model = NoisyNetwork(network("digits-cnn", (1, 8, 8), 10), (1, 8, 8), place="input")
    model.set_noise(np.full(64, 0.25))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(1500):
        chosen = torch.randint(len(data.train_targets), (128,))
        loss = torch.nn.functional.cross_entropy(model(data.train_inputs[chosen]), data.train_targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), data.test_inputs, data.test_targets


def stopping(run: Path | None, norm: str, radii: list[float], examples: int, threads: int) -> list[dict[str, Any]]:
    """Return a row per radius: draws and decisions of the question against those of all draws."""
    import numpy as np
    import torch

    from securesgd.certificates.certify import certify
    from securesgd.certificates.record import CertifySettings
    from securesgd.data.load import load_data
    from securesgd.run import load_run

    torch.set_num_threads(threads)
    if run is None:
        model, inputs, targets = trained_digits()
    else:
        config, model = load_run(run)
        data = load_data(config.dataset)
        inputs, targets = data.test_inputs, data.test_targets
    inputs, labels = inputs[:examples], targets[:examples].numpy()
    bound = model.sensitivity(norm)
    started = time.perf_counter()
    whole = certify(model, inputs, CertifySettings(norm=norm, seed=0), sensitivity=bound)
    seconds = time.perf_counter() - started
    other = certify(model, inputs, CertifySettings(norm=norm, seed=1), sensitivity=bound)
    rows = []
    for radius in radii or [r / bound.upper for r in (0.5, 1.0, 1.5)]:
        settings = CertifySettings(norm=norm, radius=radius, seed=0)
        started = time.perf_counter()
        asked = certify(model, inputs, settings, sensitivity=bound)
        took = time.perf_counter() - started
        yes, fixed, again = asked.answer == "yes", whole.radius["tight"] >= radius, other.radius["tight"] >= radius
        used = float(asked.draws.mean()) + settings.selection_draws
        rows.append(
            {
                "benchmark": "stopping",
                "model": "digits" if run is None else run.name,
                "norm": norm,
                "radius": round(radius, 5),
                "whitened_radius": round(radius * bound.upper, 3),
                "contender": "ours, asked",
                "certified_accuracy": round(float((yes & (asked.prediction == labels)).mean()), 4),
                "certified_accuracy_all_draws": round(float((fixed & (whole.prediction == labels)).mean()), 4),
                "draws_mean": round(used, 1),
                "draws": settings.draws + settings.selection_draws,
                "ratio": round((settings.draws + settings.selection_draws) / used, 2),
                "same_decisions": round(float((yes == fixed).mean()), 4),
                "fixed_twice": round(float((again == fixed).mean()), 4),
                "examples_per_s": round(len(inputs) / took, 2),
                "examples_per_s_all_draws": round(len(inputs) / seconds, 2),
                "n": len(inputs),
                "threads": threads,
                "torch": version("torch"),
                "numpy": version("numpy"),
            }
        )
        np.testing.assert_array_less(asked.draws, settings.draws + 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time certification and count its draws; JSON rows on standard output."
    )
    parser.add_argument("--only", choices=("speed", "stopping"))
    parser.add_argument("--nets", nargs="+", choices=sorted(NETS), default=list(NETS))
    parser.add_argument("--repeats", type=int, default=7, help="turns per contender")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--run", type=Path, help="a finished run for the stopping rows; digits, trained here, if not given"
    )
    parser.add_argument("--norm", default="linf")
    parser.add_argument("--radii", default="", help="as 0.02,0.04; 0.5, 1 and 1.5 standard deviations if not given")
    parser.add_argument("--examples", type=int, default=250)
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--net", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.net, options.threads)
        return
    if options.only != "stopping":
        for net in options.nets:
            for row in speed(net, options.repeats, options.threads):
                print(json.dumps(row), flush=True)
    if options.only != "speed":
        radii = [float(part) for part in options.radii.split(",") if part]
        for row in stopping(options.run, options.norm, radii, options.examples, options.threads):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
