"""Two ranks that work together, started quickly.

The launcher does what torchrun does (a store of its own, SIGTERM to the ranks that are left), but forks the ranks from
a process that has loaded everything, so that a start costs no seconds.
"""

import signal
import socket
import time
from pathlib import Path

import torch.distributed as dist

from tests.forked import COMMAND, Forked

LONGEST = 240


def outputs_of_two(program, *arguments):
    """What two ranks of a program print that calls torch.distributed itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [Forked(program, *arguments, **shared, RANK=str(rank)) for rank in range(2)]
    return [rank.communicate().stdout.strip() for rank in ranks]


class Launcher:
    """Runs jobs of two ranks in the folder `place`."""

    def __init__(self, place):
        self.place = Path(place)

    def __call__(self, *words, kill=None, restarts=0, monitor_interval=0.1):
        """Run a command, or -c and a program, in two ranks, and kill -9 one of them after some seconds if asked to.

        `monitor_interval` is torchrun's option of that name: seconds until it looks, and stops the ranks that are left.
        """
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
        shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        program, *arguments = words[1:] if words[0] == "-c" else (COMMAND, *words)
        began, told = time.monotonic(), None
        said = self.place / "said"
        said.unlink(missing_ok=True)
        ranks = [Forked(program, *arguments, cwd=self.place, said=said, **shared, RANK=str(rank)) for rank in (0, 1)]
        while running := [rank for rank in ranks if rank.returncode is None]:
            now = time.monotonic() - began
            if kill and now >= kill[1]:
                ranks[kill[0]].send_signal(signal.SIGKILL)
                kill = None
            if told is None and any(rank.returncode for rank in ranks):
                told = now + monitor_interval
            if told is not None and now >= told:
                told = float("inf")
                for rank in running:
                    rank.send_signal(signal.SIGTERM)
            if now > LONGEST:
                for rank in running:
                    rank.kill()
            time.sleep(0.005)
        seconds = time.monotonic() - began
        return {"codes": [rank.returncode for rank in ranks], "said": said.read_text(), "seconds": seconds}


def own_lines(result):
    """The lines that the command line itself says on standard error."""
    return [line for line in result["said"].splitlines() if line.startswith("securesgd: ")]
