"""Processes that start in milliseconds: forked from a server that has loaded the package and run nothing.

One server serves all tests of a process. What a test is about beside the program, as the entry point of the install,
an import or torchrun, needs a process of its own: see `tests/command_line.py`.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from subprocess import CompletedProcess

import torch

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "matplotlib.pyplot", "sklearn.datasets", "securesgd.fitted_config", "securesgd.run_training",
     "securesgd.run_job", "securesgd.run", "securesgd.cli", "typer._adapters", "pydantic", "torch._dynamo"]
)  # fmt: skip
COMMAND = "from securesgd.cli import main\nmain()"


def _become(program, arguments, cwd, environment, files):
    for number, file in files.items():
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
    sys.argv = ["securesgd" if program == COMMAND else "-c", *arguments]
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})


class Forked:
    """`subprocess.Popen([sys.executable, "-c", program, *arguments])`; prints to two files, or to the file `said`."""

    def __init__(self, program, *arguments, cwd=None, said=None, **environment):
        self._place = tempfile.TemporaryDirectory()
        self._files = {number: said or Path(self._place.name, str(number)) for number in (1, 2)}
        words, place = [os.fspath(word) for word in arguments], os.fspath(cwd or Path.cwd())
        self._process = CONTEXT.Process(
            target=_become, args=(program, words, place, os.environ | environment, self._files), daemon=True
        )
        self._process.start()

    @property
    def returncode(self):
        """None while it runs."""
        return self._process.exitcode

    def printed(self, number=1):
        """What it has printed to standard output, or with 2 to standard error."""
        return self._files[number].read_text() if self._files[number].exists() else ""

    def wait_for_line(self, seconds=100):
        """Return the first line of standard output, as soon as it is there."""
        end = time.monotonic() + seconds
        while "\n" not in self.printed():
            assert self.returncode is None, self.printed(2)
            assert time.monotonic() < end, "it prints nothing"
            time.sleep(0.005)
        return self.printed().split("\n")[0]

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def kill(self):
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.join()

    def communicate(self, seconds=120):
        """Wait for the end; one that does not come is forced, with the return code of a kill."""
        self._process.join(seconds)
        self.kill()
        return CompletedProcess("forked", self.returncode, self.printed(1), self.printed(2))


def run_forked(program, *arguments, **where):
    """`subprocess.run([sys.executable, "-c", program, *arguments])`."""
    return Forked(program, *arguments, **where).communicate()
