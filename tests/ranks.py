"""Two ranks that work together, started quickly.

The launcher does what torchrun does (a store of its own, SIGTERM to the ranks that are left), but forks the ranks from
a process that has loaded everything, so that a start costs no seconds.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAUNCHER = """
import json, os, signal, sys, time
import matplotlib.pyplot, sklearn.datasets, torch
import torch.distributed as dist
torch.set_num_threads(1)
import securesgd.fitted_config, securesgd.run_training
from securesgd.cli import main

def rank_of_job(rank, port, words, restarts):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
    sys.argv = ["securesgd", *words]
    with open("said", "a") as said:
        os.dup2(said.fileno(), 2)
        os.dup2(said.fileno(), 1)
    try:
        exec(words[1], {}) if words[0] == "-c" else main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(77)

def job(words, kill, restarts):
    open("said", "w").close()
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    began, codes, told = time.monotonic(), {}, None
    ranks = {}
    for rank in range(2):
        ranks[rank] = os.fork()
        if not ranks[rank]:
            rank_of_job(rank, store.port, words, restarts)
    while len(codes) < 2:
        time.sleep(0.005)
        now = time.monotonic() - began
        if kill and now >= kill[1]:
            if kill[0] not in codes:
                os.kill(ranks[kill[0]], signal.SIGKILL)
            kill = None
        for rank in set(ranks) - set(codes):
            pid, status = os.waitpid(ranks[rank], os.WNOHANG)
            if pid:
                codes[rank] = os.waitstatus_to_exitcode(status)
                if codes[rank] and told is None:
                    told = now + 0.1  # torchrun looks ten times a second
        if told is not None and now >= told:
            told = float("inf")
            for rank in set(ranks) - set(codes):
                os.kill(ranks[rank], signal.SIGTERM)
        if now > 240:
            for rank in set(ranks) - set(codes):
                os.kill(ranks[rank], signal.SIGKILL)
    return {"codes": [codes[0], codes[1]], "said": open("said").read(), "seconds": time.monotonic() - began}

for line in sys.stdin:
    words, kill, restarts = json.loads(line)
    print(json.dumps(job(words, kill, restarts)), flush=True)
"""


@contextmanager
def two_ranks(place):
    """Yield a function that runs a command, or -c and a program, in two ranks, and may kill one after some seconds."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], cwd=place, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip

    def run(*words, kill=None, restarts=0):
        launcher.stdin.write(json.dumps([words, kill, restarts]) + "\n")
        launcher.stdin.flush()
        return json.loads(launcher.stdout.readline())

    run.place = place
    yield run
    launcher.stdin.close()
    launcher.wait(timeout=60)


def own_lines(result):
    """The lines that the command line itself says on standard error."""
    return [line for line in result["said"].splitlines() if line.startswith("securesgd: ")]
