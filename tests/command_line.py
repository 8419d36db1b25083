"""The command line in tests: as a process of its own, or inside this one, which spares the seconds of its start."""

import contextlib
import io
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
    """The same entry point in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    redirected = (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err))
    with redirected[0], redirected[1], patch.object(sys, "argv", ["securesgd", *arguments]):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
