"""Every program of examples/ runs from beginning to end as a user starts it: short here, whole in the slow suite."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import run_here

ROOT = Path(__file__).parents[1]
SECONDS = {"short": 200, "whole": 600}
# Text of an example and what stands in its place in the short form; an example that is not here is quick as it is.
SHORTER = {
    "own_network.py": [
        ("steps=steps", "steps=steps, accountant='rdp'"),
        (", 100\n", ", 4\n"),
        ("draws=1_000", "draws=50"),
        ("examples=40, eot=5", "examples=4, eot=1, steps=2, sanity_checks=False"),
    ],
    "own_loop.py": [("steps = 120", "steps = 32"), ("delta=1e-4", "delta=1e-4, accountant='rdp'")],
    "private_digits.py": [("default=200", "default=10"), ("delta=1e-4", "delta=1e-4, accountant='rdp'")],
}

NEEDS = {"lightning_loop.py": "lightning", "hugging_face_trainer.py": "transformers"}  # no dependencies of ours
TESTED_ELSEWHERE = {"onnx_voter.py"}  # by tests/test_export.py: it takes an exported model and trains none


@pytest.mark.parametrize("size", ["short", pytest.param("whole", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted({path.name for path in (ROOT / "examples").glob("*.py")} - TESTED_ELSEWHERE))
def test_an_example_runs(name, size, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
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
    folder = tmp_path / "runs" / "example"
    assert (folder / "model.safetensors").exists()
    if name == "own_network.py":
        _require_same_verbs_on_the_command_line(folder, f"{program}:small_resnet")


def _require_same_verbs_on_the_command_line(folder, network):
    """The folder of a network of the user's own is complete: the commands take it as they take any other."""
    assert {"certificates.csv", "attacks.csv", "report.html"} <= {file.name for file in folder.iterdir()}
    for command in (
        ("certify", folder, "--network", network, "--draws", "60", "--examples", "4", "--again"),
        ("attack", folder, "--network", network, "--attack", "fgsm", "--budget", "0.1", "--examples", "2", "--eot", "1",
         "--draws", "20", "--certify-draws", "20", "--no-probes"),
        ("report", folder),
    ):  # fmt: skip
        result = run_here(*command)
        assert result.returncode == 0, result.stderr
        assert "missing" not in result.stderr
