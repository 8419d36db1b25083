"""Every program of examples/ runs from beginning to end, as a user starts it; shortened here, whole in the slow suite."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = {"short": 60, "whole": 300}
# Text of an example and what stands in its place in the short form; an example that is not here is quick as it is.
SHORTER = {
    "own_network.py": [("steps=steps", "steps=steps, accountant='rdp'"), (", 150\n", ", 4\n"), ("draws=1_000", "draws=50")],
    "private_digits.py": [("default=200", "default=10"), ("delta=1e-4", "delta=1e-4, accountant='rdp'")],
}


@pytest.mark.parametrize("size", ["short", pytest.param("whole", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_an_example_runs(name, size, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    program = tmp_path / "examples" / name
    for old, new in SHORTER.get(name, []) if size == "short" else []:
        text = program.read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
        program.write_text(text.replace(old, new))
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
