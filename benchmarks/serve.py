"""What serving adds to the votes: 2,000 requests of 16 clients at once, beside the same predictions in process.

Trains a run of digits, serves it by the command, and asks from a process of its own about test digits that the run is
sure of. Prints a JSON row: requests that got no answer (`lost`), another class than the run's own (`wrong`) or none
(`abstained`), times, memory of the server after a warm-up and after all requests, and the time per request over that of
`Run.predict` in process, by batches of as many inputs as there are clients (`ratio`) and one by one.

On a machine that others use, wall times say little: `cpu_ratio` compares the processor time of the server's process
with that of the bare predictions.

    python benchmarks/serve.py --requests 2000 --clients 16
"""

import argparse
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

DRAWS = 1000


def train(folder: str, steps: int) -> list[tuple[list[Any], int]]:
    """Train a run of digits; return test digits that it is sure of, each with the class the run gives it."""
    from securesgd.config import run_config
    from securesgd.run_training import train_run

    run = train_run(run_config("digits", "secure-sgd", accountant="rdp", steps=steps), Path(folder))
    inputs = run.data.test_inputs
    predictions = run.predict(inputs, draws=10_000)
    assert isinstance(predictions, list)
    return [
        (x.tolist(), p.label)
        for x, p in zip(inputs, predictions, strict=True)
        if p.label is not None and p.radius > 0.01
    ]


def bare(folder: str, inputs: list[list[Any]], together: int) -> tuple[float, float]:
    """Return seconds and processor seconds per input of predictions in this process."""
    import torch

    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory

    keep_memory()
    run, x = load_run(folder), torch.tensor(inputs)
    run.predict(x[:together], draws=DRAWS)
    started, cpu = time.perf_counter(), time.process_time()
    for batch in torch.split(x, together):
        run.predict(batch, draws=DRAWS)
    return (time.perf_counter() - started) / len(x), (time.process_time() - cpu) / len(x)


def ask(address: str, asked: list[tuple[list[Any], int]], clients: int) -> dict[str, Any]:
    """Ask about every input, so many at once; return what came back."""
    import httpx

    waiting, seconds = list(asked), []
    counts = {"lost": 0, "wrong": 0, "abstained": 0}
    lock = threading.Lock()

    def client() -> None:
        with httpx.Client(timeout=120) as connection:
            while True:
                with lock:
                    if not waiting:
                        return
                    x, label = waiting.pop()
                started = time.perf_counter()
                try:
                    reply = connection.post(address + "api/predict", json={"pixels": x})
                    found = reply.json() if reply.status_code == 200 else None
                except httpx.HTTPError:
                    found = None
                with lock:
                    seconds.append(time.perf_counter() - started)
                    counts["lost"] += found is None
                    if found is not None:
                        counts["abstained"] += found["abstained"]
                        counts["wrong"] += not found["abstained"] and found["label"] != label
                        counts["wrong"] += sum(row["votes"] for row in found["votes"]) != DRAWS

    threads = [threading.Thread(target=client) for _ in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = time.perf_counter() - started
    cuts = statistics.quantiles(seconds, n=100)
    return {**counts, "seconds": total, "p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def memory(process: int) -> float:
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests to `securesgd serve` against predictions in process.")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150, help="of training")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the server and of the bare predictions alike
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place, fresh.Pool(1, maxtasksperchild=1) as pool:
        folder = str(Path(place) / "run")
        sure = pool.apply(train, (folder, options.steps))
        asked = [sure[number % len(sure)] for number in range(options.requests)]
        command = [sys.executable, "-c", "from securesgd.cli import main; main()", "serve", folder, "--port", "0"]
        server = subprocess.Popen([*command, "--draws", str(DRAWS)], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            pool.apply(ask, (address, asked[: max(1, options.requests // 10)], options.clients))
            before, cpu = memory(server.pid), cpu_seconds(server.pid)
            result = pool.apply(ask, (address, asked, options.clients))
            after, cpu = memory(server.pid), cpu_seconds(server.pid) - cpu
        finally:
            server.send_signal(signal.SIGTERM)
            ended = server.wait(60)
        inputs = [x for x, _ in asked]
        together, together_cpu = pool.apply(bare, (folder, inputs, options.clients))
        alone, alone_cpu = pool.apply(bare, (folder, inputs[: max(1, options.requests // 10)], 1))
    served, served_cpu = result["seconds"] / options.requests, cpu / options.requests
    row = {
        "benchmark": "serve", "requests": options.requests, "clients": options.clients, "draws": DRAWS,
        **{name: result[name] for name in ("lost", "wrong", "abstained")},
        **{f"{name}_ms": round(1e3 * result[name], 1) for name in ("p50", "p95", "p99")},
        "requests_per_s": round(1 / served, 1), "rss_before_mb": round(before, 1), "rss_after_mb": round(after, 1),
        "ms": round(1e3 * served, 2), "bare_ms": round(1e3 * together, 2), "bare_one_by_one_ms": round(1e3 * alone, 2),
        "ratio": round(served / together, 3), "ratio_one_by_one": round(served / alone, 3),
        "cpu_ms": round(1e3 * served_cpu, 2), "bare_cpu_ms": round(1e3 * together_cpu, 2),
        "cpu_ratio": round(served_cpu / together_cpu, 3), "cpu_ratio_one_by_one": round(served_cpu / alone_cpu, 3),
        "exit_code": ended, "load": round(os.getloadavg()[0], 1), "cores": os.cpu_count(), "n": 1,
        **{name: version(name) for name in ("torch", "fastapi", "uvicorn")},
    }  # fmt: skip
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
