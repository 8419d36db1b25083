"""Examples that stay on disk: what reading ahead gains, and how much memory a training on 3.9 GB of them takes.

    python benchmarks/on_disk.py                         # all parts, printed as JSON rows
    python benchmarks/on_disk.py --only reading --repeats 5

reading     seconds by the clock of a DP-SGD step, MNIST network, batch 256, with the next sample read ahead and
            without, in turns of 4 steps: images that are decoded (28×28 PNG; 64×64 JPEG, made smaller), and an array
            file that the system was told to forget before each step
decoding    seconds per image of decoding 1,024 of a folder, by threads as a training does it and by worker processes
            that hand the pixels over, in turns: small PNG, larger ones made smaller, JPEG made smaller; `seconds` are
            those of the processor, workers included, and `start_seconds` what the workers take to be there
memory      peak memory of a process, and seconds, of a training of 5 steps of a linear network on 10,000 images of
            28×28 and on 5,000,000 in a file of 3.9 GB; reading all of them for the digest of the run is among it

`n` is the number of turns, `turns` has each, `clock_seconds` is their median; `load` says how busy the machine was.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scaling import BATCH, dpsgd_step, peak_memory, print_rows

STORED = [10_000, 5_000_000]
STEPS = 4  # of a turn


def reading_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of a step on each kind of stored examples, with and without reading ahead, in turns."""
    from securesgd.data.load import load_data
    from securesgd.data.settings import DataSettings
    from securesgd.models.networks import network
    from securesgd.training.examples import as_examples
    from securesgd.training.read_ahead import ReadAhead

    with tempfile.TemporaryDirectory() as place:
        for source, path in (
            ("png", write_images(Path(place) / "png", "png", 28)),
            ("jpg", write_images(Path(place) / "jpg", "jpg", 64)),
            ("npy", write_arrays(Path(place) / "npy", 100_000)),
        ):
            settings = None if source == "npy" else DataSettings(resize="28x28", on_disk=True)
            loaded = load_data(path, settings=settings)
            data = as_examples((loaded.train_inputs, loaded.train_targets))
            step = dpsgd_step(network("mnist-cnn", loaded.input_shape, loaded.classes), data, BATCH, None)
            ahead = ReadAhead(step.read, 10**9)
            turns: dict[bool, list[float]] = {False: [], True: []}
            for number in range(2 * repeats + 2):
                is_ahead, times = bool(number % 2), []
                for i in range(1 + STEPS):  # the first is not timed: nothing was read ahead for it
                    if source == "npy":
                        forget(path / "train_x.npy")
                    began = time.perf_counter()
                    replace(step, ahead=ahead if is_ahead else None).gradient(number * 10 + i)
                    times.append(time.perf_counter() - began)
                turns[is_ahead].append(statistics.mean(times[1:]))
            ahead.close()
            for is_ahead, measured in turns.items():
                clock = {"clock_seconds": statistics.median(measured[1:]), "turns": measured[1:], "n": repeats}
                yield {"part": "reading", "source": source, "ahead": is_ahead, "batch": BATCH} | clock


def write_images(folder: Path, kind: str, size: int, count: int = 1500) -> Path:
    """Write a folder of grey images of two classes."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            rough = Image.fromarray(generator.integers(0, 256, (size // 4, size // 4), dtype=np.uint8))
            rough.resize((size, size), Image.Resampling.BICUBIC).save(folder / name / f"{i}.{kind}")
    return folder


def write_arrays(folder: Path, count: int) -> Path:
    """Write images of 28×28 in a folder of arrays, without holding them."""
    import numpy as np

    folder.mkdir()
    block = np.random.default_rng(0).integers(0, 256, (10_000, 28, 28), dtype=np.uint8)
    with (folder / "train_x.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 28, 28)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(count // len(block)):
            file.write(block.data)
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / "test_x.npy", block[:100])
    np.save(folder / "train_y.npy", np.arange(count) % 10)
    np.save(folder / "test_y.npy", np.arange(100) % 10)
    return folder


def forget(path: Path) -> None:
    """Have the system drop what it holds of a file, so that rows are read from the disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def decoding_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield the time of decoding images by threads and by processes, in turns."""
    from concurrent.futures import ProcessPoolExecutor

    import numpy as np

    from securesgd.data.image_rows import ImageRows

    workers, sample = len(os.sched_getaffinity(0)), np.random.default_rng(0).integers(0, 2000, 1024)
    with tempfile.TemporaryDirectory() as place, ProcessPoolExecutor(workers) as pool:
        began = time.perf_counter()
        list(pool.map(_decoded, [[]] * workers))
        started = time.perf_counter() - began
        for kind, size in (("png", 28), ("png", 224), ("jpg", 224)):
            folder = write_images(Path(place) / f"{kind}{size}", kind, size, 1000)
            files = sorted(str(file.relative_to(folder)) for file in folder.glob("*/*"))
            parts = [[folder / files[i] for i in sample[first::workers]] for first in range(workers)]
            ways = {
                "threads": partial(ImageRows(folder, files, "L", (28, 28)).read, sample),
                "processes": lambda parts=parts: list(pool.map(_decoded, parts)),
            }
            turns: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(repeats + 1):
                for name, read in ways.items():
                    busy, clock = _processor_seconds(pool), time.perf_counter()
                    read()
                    turns[name].append((_processor_seconds(pool) - busy, time.perf_counter() - clock))
            for name, measured in turns.items():
                seconds, clock = (statistics.median(t) / len(sample) for t in zip(*measured[1:], strict=True))
                row = {"part": "decoding", "source": kind, "pixels": size, "by": name, "workers": workers}
                start = {"start_seconds": started} if name == "processes" else {}
                yield row | {"images": len(sample), "seconds": seconds, "clock_seconds": clock, "n": repeats} | start


def _decoded(paths: list[Path]) -> Any:
    """Return the pixels of these files, in a worker process."""
    import numpy as np

    from securesgd.data.image_files import read_pixels

    return np.stack([read_pixels(path, "L", (28, 28)) for path in paths]) if paths else None


def _processor_seconds(pool: Any) -> float:
    """Return the seconds of the processor of this process and of the workers of the pool, which still run."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split() for number in pool._processes]
    return time.process_time() + sum(int(f[11]) + int(f[12]) for f in fields) / ticks


def memory_rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield memory and time of one training, in a process of its own, for each number of stored images."""
    for count in STORED:
        with tempfile.TemporaryDirectory() as place:
            folder = write_arrays(Path(place) / "arrays", count)
            size = (folder / "train_x.npy").stat().st_size
            command = [sys.executable, __file__, "--one-training", str(folder)]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield {"part": "memory", "examples": count, "file_bytes": size} | row


def one_training(folder: str) -> dict[str, Any]:
    """Return the peak memory of this process after a training on a folder of arrays."""
    import torch

    import securesgd as ss

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    began, before = time.perf_counter(), peak_memory()
    ss.train(model, folder, out=f"{folder}-run", noise_multiplier=1.0, delta=1e-9, batch_size=BATCH, steps=5)
    memory = {"peak_mb": round(peak_memory() / 2**20), "before_mb": round(before / 2**20)}
    return memory | {"batch": BATCH, "steps": 5, "clock_seconds": time.perf_counter() - began, "n": 1}


MAKERS = {"reading": reading_rows, "decoding": decoding_rows, "memory": memory_rows}


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MAKERS, nargs="+", default=list(MAKERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one-training", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_training:
        print(json.dumps(one_training(given.one_training)))
    else:
        print_rows(MAKERS[part](given.repeats) for part in given.only)


if __name__ == "__main__":
    main()
