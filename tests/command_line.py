"""The command line in tests: as a process of its own, or inside this one, which spares the seconds of its start."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from securesgd.cli import main

SECURESGD = Path(sys.executable).with_name("securesgd")


def run(*arguments, cwd=None):
    """The installed command, as a user calls it."""
    return subprocess.run([SECURESGD, *arguments], capture_output=True, text=True, cwd=cwd, check=False)


def run_here(*arguments):
    """The same entry point in this process; its streams are encoded as strictly as those of a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code = 0
    redirected = (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err))
    words = [os.fspath(word) for word in arguments]
    with redirected[0], redirected[1], patch.object(sys, "argv", ["securesgd", *words]):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    texts = (stream.buffer.getvalue().decode("utf-8") for stream in (out, err))
    return subprocess.CompletedProcess(arguments, code, *texts)
