"""Damaged files and odd command lines by the thousand: no traceback, nothing changed on refusal, no hang.

The seed and the numbers are fixed: 2,000 damaged files and 1,000 command lines, of which the fast suite runs a few dozen.
"""

import json
import os
import random
import shutil
import signal
from contextlib import contextmanager

import pytest

from tests.command_line import run_here

FILES, LINES = 2_000, 1_000
PARTS = 20  # each a test of its own
FAST_FILES, FAST_LINES = 12, 24
SECONDS = 60  # the longest a command may take here; nearly all take less than one
CERTIFY = ("--draws", "40", "--selection-draws", "10", "--examples", "6")
ATTACK = ("--attack", "fgsm", "--budget", "0.05", "--examples", "4", "--eot", "2", "--draws", "20", "--certify-draws",
          "20", "--no-probes")  # fmt: skip
READERS = {
    "certificates.csv": ("report", "certify"),
    "certificates.json": ("report", "certify"),
    "falsified-linf.json": ("report",),
    "sensitivity.json": ("certify", "attack"),
    "attacks.csv": ("report", "attack"),
    "attacks.json": ("report", "attack"),
    "metrics.jsonl": ("report", "resume"),
    "environment.json": ("report",),
    "redistribution.json": ("report",),
    "report.html": ("report",),
    "MODEL_CARD.md": ("report",),
    "certificates.png": ("report", "certify"),
    "attacks.png": ("report",),
    "redistribution.png": ("report",),
}
EVERY = ("report", "certify", "attack", "resume")  # read config.toml, model.json, model.safetensors and the ledger


def command(name, folder):
    return {
        "report": ("report", folder),
        "certify": ("certify", folder, *CERTIFY),
        "attack": ("attack", folder, *ATTACK),
        "resume": ("train", "--resume", "--out", folder),
    }[name]


def state(folder):
    """Every file and what it holds, without waiting for pipes."""
    return {
        path: path.read_bytes() if path.is_file() else path.lstat().st_mode for path in sorted(folder.rglob("*"))
    }  # fmt: skip


@contextmanager
def time_limit(words):
    def stop(*_):
        raise AssertionError(f"{words} took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def require_manners(words, arguments, folder):
    """Run a command: exit code 0, 1 or 2; on 2 one line on standard error, and every file as it was."""
    before = state(folder)
    with time_limit(words):
        try:
            result = run_here(*arguments)
        except Exception as error:
            raise AssertionError(f"{words}: {type(error).__name__}: {error}") from error
    assert result.returncode in (0, 1, 2), words
    assert "Traceback" not in result.stderr, words
    if result.returncode == 2:
        assert result.stderr.startswith("securesgd: error: "), f"{words}: {result.stderr}"
        assert result.stderr.count("\n") == 1, f"{words}: {result.stderr}"
        assert state(folder) == before, words
    return result.returncode


# Damage to bytes


def flipped(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 8))):
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(rng, data):
    return data[: rng.randrange(len(data))]


def doubled_line(rng, data):
    lines = data.splitlines(keepends=True)
    line = rng.randrange(len(lines))
    return b"".join([*lines[: line + 1], *lines[line:]])


def lost_line(rng, data):
    lines = data.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def inserted(rng, data):
    place = rng.randrange(len(data))
    odd = rng.choice(
        (b"\xff\xfe", b"\0", b"\n", b",", b'"', b"[" * 5000, b"9" * 400, b"\xef\xbb\xbf", b"x" * 140_000, b"nan", b"-")
    )
    return data[:place] + odd + data[place:]


def with_other_lines(rng, data):
    return rng.choice((b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"), data + data, data[::-1]))


def other_content(rng, _):
    return rng.choice(
        (
            b"",
            b"{}",
            b"[]",
            b"null",
            b"0",
            b"\n\n",
            b'"x"',
            b"[" * 100_000,
            b"\x89PNG\r\n\x1a\n",
            bytes(range(256)),
            b"a,b\n1,2\n",
            b"PK\x03\x04",
        )
    )


# Damage to values

ODD_VALUES = (
    None, True, "", "x", "[/red]", -1, 0, 1, 10**18, -(10**18), 1e308, -1e308, 5e-324, 0.5, [], {}, [[]], [None], {"a": {}}, "inf", "nan",
    10**400, "9" * 5000, "\ud800",
)  # fmt: skip


def places(value, way=()):
    """Every place in a nested value."""
    for key in value if isinstance(value, dict) else range(min(len(value), 8)) if isinstance(value, list) else ():
        yield (*way, key)
        yield from places(value[key], (*way, key))


def edited(rng, data):
    """Replace or remove a value of a JSON file, or a cell of a table."""
    text = data.decode()
    if not text.startswith("{"):
        lines = text.splitlines()
        row = rng.randrange(len(lines))
        cells = lines[row].split(",")
        cells[rng.randrange(len(cells))] = str(rng.choice(ODD_VALUES)).replace("\ud800", "?")
        lines[row] = ",".join(cells)
        return "\n".join([*lines, ""]).encode()
    lines = text.splitlines() if "\n{" in text else [text]
    line = rng.randrange(len(lines))
    value = json.loads(lines[line])
    *way, key = rng.choice(list(places(value)))
    inner = value
    for step in way:
        inner = inner[step]
    if isinstance(inner, dict) and rng.random() < 0.3:
        del inner[key]
    else:
        inner[key] = rng.choice(ODD_VALUES)
    lines[line] = json.dumps(value)
    return "\n".join([*lines, ""]).encode()


BYTES = (flipped, flipped, cut, doubled_line, lost_line, inserted, with_other_lines, other_content)
TEXTS = (*BYTES, edited, edited, edited, edited)


def damage(rng, folder):
    """Damage one file of a run folder; return what was done and the commands that read it."""
    path = folder / rng.choice(sorted(entry.name for entry in folder.iterdir()))
    if rng.random() < 0.08:
        kind = rng.choice(("gone", "folder", "pipe", "link to nothing", "link to a device", "link to itself"))
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind.startswith("link"):
            path.symlink_to({"nothing": "/nowhere", "device": "/dev/zero", "itself": path.name}[kind.split()[-1]])
        return f"{path.name} {kind}", READERS.get(path.name, EVERY)
    kind = rng.choice(BYTES if path.suffix in (".png", ".safetensors", ".html") else TEXTS)
    path.write_bytes(kind(rng, path.read_bytes()))
    return f"{path.name} {kind.__name__}", READERS.get(path.name, EVERY)


def fuzz_files(tiny_run, tmp_path, numbers):
    for number in numbers:
        rng = random.Random(f"file {number}")
        folder = tmp_path / f"run-{number}"
        shutil.copytree(tiny_run, folder)
        words, readers = damage(rng, folder)
        name = rng.choice(readers)
        require_manners(f"file {number}: {words}, {name}", command(name, folder), folder)
        shutil.rmtree(folder)


# Command lines

ODD_WORDS = (
    "", " ", "0", "-1", "1", "1e15", "1e-300", "1e300", "1e999", "nan", "inf", "-inf", "x", "9" * 5000, str(2**63), str(10**9), "0.1", ",", "1,2,x", "[/red]", "[" * 5000,
    "é\n\x07", "\udcff", "/dev/null", "/nowhere/x", "a" * 5000, "--", "-h", "linf,linf", "all", "null", "true", "{}", "=", "steps=", "=1",
)  # fmt: skip
COMMANDS = {
    "noise": ("epsilon", "delta", "sigma", "sensitivity", "mechanism"),
    "train": ("dataset", "method", "epsilon", "delta", "config", "set", "set", "set", "resume"),
    "certify": ("norm", "draws", "failure-prob", "examples", "rule", "radius", "tolerance", "at-radii", "selection-draws", "seed"),
    "attack": ("attack", "norm", "budget", "eot", "steps", "restarts", "target", "examples", "protocol", "draws", "certify-draws", "seed"),
    "report": ("out",),
    "reproduce": ("profile", "out", "work", "jobs", "seeds"),
    "data": ("folder",),
}  # fmt: skip
SETTINGS = (
    "network", "seed", "holdout", "public_dataset", "norm", "place", "unit", "robust_epsilon", "robust_delta", "attack_size", "redistribution", "start", "scale_grid", "scale_rate", "scale_share",
    "direction", "beta", "per", "r_noise_multiplier", "r_step", "private", "delta", "epsilon", "noise_multiplier", "batch_size", "steps", "max_grad_norm",
    "accountant", "noise_seed", "learning_rate", "optimizer", "momentum", "schedule", "warmup_steps", "ema_decay", "copies", "micro_batch",
    "block_steps", "checkpoint_steps", "robustness", "training", "adlm", "dataset", "training.steps", "hidden",
)  # fmt: skip


def line_of(rng, name, run, work):
    """Return a command line with one to three odd options, small enough in the others to end at once if it is valid."""
    words = {
        "noise": ["noise", "--epsilon", "1"],
        "train": ["train", "--out", work / "new", "--dataset", "digits", "--method", rng.choice(("secure-sgd", "dpsgd", "sgd", "pixeldp", "adlm")),
                  *(word for setting in ("steps=1", "batch_size=16", "copies=1", "accountant=rdp") for word in ("--set", setting))],
        "certify": ["certify", run, *CERTIFY],
        "attack": ["attack", run, *ATTACK],
        "report": ["report", run],
        "reproduce": ["reproduce", "fig1", "--out", work / "results", "--work", work / "work", "--jobs", "1"],
        "data": ["data", rng.choice(("list", "fetch")), rng.choice(("digits", "x", "", "9"))],
    }[name]  # fmt: skip
    for option in rng.sample(COMMANDS[name], min(len(COMMANDS[name]), rng.choice((1, 1, 2, 3)))):
        odd = rng.choice(ODD_WORDS)
        words += [f"--{option}", f"{rng.choice(SETTINGS)}={odd}" if option == "set" and rng.random() < 0.9 else odd]
    if rng.random() < 0.1:
        words[rng.randrange(len(words))] = rng.choice(ODD_WORDS)
    return [os.fspath(word).replace("\0", "") for word in words]


def fuzz_lines(tiny_run, tmp_path, monkeypatch, numbers):
    """Every line runs beside a copy of the run, in a folder of its own, with valid values as small as they come."""
    for number in numbers:
        rng = random.Random(f"line {number}")
        work = tmp_path / f"line-{number}"
        run = work / "run"
        shutil.copytree(tiny_run, run)
        monkeypatch.chdir(work)
        name = rng.choice(list(COMMANDS))
        words = line_of(rng, name, run, work)
        require_manners(f"line {number}: {' '.join(words)[:300]!a}", words, work)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(work)


def test_a_few_damaged_files(tiny_run, tmp_path):
    fuzz_files(tiny_run, tmp_path, range(FAST_FILES))


def test_a_few_odd_command_lines(tiny_run, tmp_path, monkeypatch):
    fuzz_lines(tiny_run, tmp_path, monkeypatch, range(FAST_LINES))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_files(part, tiny_run, tmp_path):
    fuzz_files(tiny_run, tmp_path, range(part, FILES, PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_odd_command_lines(part, tiny_run, tmp_path, monkeypatch):
    fuzz_lines(tiny_run, tmp_path, monkeypatch, range(part, LINES, PARTS))
