"""What every refusal has to be: one line that names the thing, exit code 2, and nothing changed."""

import signal
from contextlib import contextmanager

from tests.command_line import run_here

CERTIFY = ("--draws", "40", "--selection-draws", "10", "--examples", "6")


CERTIFY = ("--draws", "40", "--selection-draws", "10", "--examples", "6")
ATTACK = ("--attack", "fgsm", "--budget", "0.05", "--examples", "4", "--eot", "2", "--draws", "20", "--certify-draws",
          "20", "--no-probes")  # fmt: skip


CERTIFY = ("--draws", "40", "--selection-draws", "10", "--examples", "6")
ATTACK = ("--attack", "fgsm", "--budget", "0.05", "--examples", "4", "--eot", "2", "--draws", "20", "--certify-draws",
          "20", "--no-probes")  # fmt: skip
QUICK = [word for setting in ("steps=1", "batch_size=16", "copies=1", "accountant=rdp") for word in ("--set", setting)]


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()}


@contextmanager
def time_limit(seconds):
    """Fail, rather than wait for ever."""

    def stop(*_):
        raise AssertionError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(*command, naming, inside=None):
    """One line on standard error that names the thing, exit code 2, nothing on standard output, nothing changed."""
    before = content(inside) if inside else None
    with time_limit(20):
        result = run_here(*command)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert naming in result.stderr
    assert result.stdout == ""
    if inside:
        assert content(inside) == before
    return result.stderr
