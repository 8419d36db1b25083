"""Every program of examples/ runs from beginning to end, as a user starts it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 60
# What makes an example short; one that is not here is run with a run folder alone.
SHORTER = {"private_digits.py": ("--steps", "20")}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path, tmp_path):
    result = subprocess.run(
        [sys.executable, path, "runs/example", *SHORTER.get(path.name, ())],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "differential" in result.stdout or "epsilon" in result.stdout, "an example ends with what it guarantees"
    assert (tmp_path / "runs" / "example" / "model.safetensors").exists()
