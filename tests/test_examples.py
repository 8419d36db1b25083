"""Every program of examples/ runs from beginning to end, as a user starts it; the whole of it in the slow suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = {"short": 60, "whole": 300}
# Patterns in an example and what stands in their place in the short form; one that is not here is quick as it is.
SHORTER = {
    "own_network.py": {
        r"steps=steps,": "steps=steps, accountant='rdp',",
        r"(, steps = .*), \d+$": r"\1, 4",
        r"=1_000\b": "=50",
    },
    "private_digits.py": {r"default=200\b": "default=10", r"delta=1e-4,": "delta=1e-4, accountant='rdp',"},
}


@pytest.mark.parametrize("size", ["short", pytest.param("whole", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_an_example_runs(name, size, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    program = tmp_path / "examples" / name
    for pattern, replacement in SHORTER.get(name, {}).items() if size == "short" else ():
        text, count = re.subn(pattern, replacement, program.read_text(), flags=re.M)
        assert count == 1, f"{name} has {count} times: {pattern}"
        program.write_text(text)
    result = subprocess.run(
        [sys.executable, program, "runs/example"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=SECONDS[size],
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "differential" in result.stdout or "epsilon" in result.stdout, "an example ends with what it guarantees"
    assert (tmp_path / "runs" / "example" / "model.safetensors").exists()
