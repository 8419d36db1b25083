"""The command line: a thin edge. It reads options, calls the package and prints; errors are one line, exit code 2.

One file per command; the order here is the order of `securesgd --help`.
"""

__all__ = ["app", "main"]

import io
import os
import signal
import sys
import warnings
from typing import Any

import typer
from rich.console import Console

from securesgd.cli.app import Interrupted, app
from securesgd.errors import PeerStoppedError, SecureSGDError, printable

# Importing registers a command; the order is that of the help.
# isort: off
from securesgd.cli import plan, config, noise, data, train, tune, certify, attack, audit, report  # noqa: F401
from securesgd.cli import statement, check, sign, predict, serve, export, reproduce, demo  # noqa: F401
# isort: on

_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")


def _option_value(error: Any) -> str:
    """Return the value that an option was given, if the error is about one."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for word, after in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in names:
            return f", got {value if equals else after!r}"
    return ""


_INTERRUPTED = 130  # as a shell says it of Ctrl-C
_LAUNCHER = (
    "stopped by its launcher (SIGTERM), as when another process of this job has ended; nothing on disk is lost: start "
    "the job again (a training: with --resume)"
)


def main() -> None:
    """Run the command line; every expected error is one line on standard error and exit code 2; Ctrl-C is 130."""
    if "OMP_NUM_THREADS" not in os.environ:
        # All cores are ours: without binding, threads may share one core for seconds. Read when torch is first loaded.
        os.environ.setdefault("OMP_PROC_BIND", "true")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold bytes that are no text
    warnings.formatwarning = lambda message, *_, **__: f"securesgd: warning: {message}\n"
    stopped_by_launcher: list[int] = []
    if _is_one_of_several():
        signal.signal(signal.SIGTERM, lambda *_: _stop(stopped_by_launcher))
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:
            _say(_LAUNCHER if stopped_by_launcher else "interrupted")
        sys.exit(code)
    except Interrupted as stop:
        _say(str(stop))
        sys.exit(_INTERRUPTED)
    except PeerStoppedError:
        sys.exit(2)
    except SecureSGDError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
    except MemoryError:
        message = "not enough memory; give fewer examples, a smaller batch_size or a micro_batch"
    except _UsageError as error:
        message = error.format_message()
        if not message:  # no arguments at all: the help was the answer
            sys.exit(2)
        message += _option_value(error)
    except (typer.Abort, KeyboardInterrupt):  # which of them it is, or a code, depends on the version of typer
        _say(_LAUNCHER if stopped_by_launcher else "interrupted")
        sys.exit(_INTERRUPTED)
    _say(f"error: {printable(message)}")
    sys.exit(2)


def _is_one_of_several() -> bool:
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _stop(stopped: list[int]) -> None:
    """Note that torchrun ends this process, since another one has ended, and end as after Ctrl-C."""
    stopped.append(signal.SIGTERM)
    raise KeyboardInterrupt


def _say(words: str) -> None:
    """Print the last words on standard error; if several processes have the same to say, one of them does."""
    if _is_one_of_several():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself; torchrun would break into its last lines
        from securesgd.runtime.processes import first_to_say

        if not first_to_say(words):
            return
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(f"securesgd: {words}")
