"""Every program of examples/ runs from beginning to end as a user starts it: short here, whole in the slow suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import run_here
from tests.forked import run_forked

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
    "table.py": [
        ("steps=120", "steps=4, accountant='rdp'"),
        ("run.certify()", "run.certify(examples=4)"),
        ("0.05])", "0.05], examples=4, steps=2, sanity_checks=False)"),
    ],
    "image_folder.py": [
        ("steps=100", "steps=4, accountant='rdp'"),
        ("epsilon=8.0", "noise_multiplier=4.0"),
        ("examples=100, draws=1_000", "examples=4, draws=50"),
        ("examples=40, eot=5", "examples=4, eot=1, steps=2, sanity_checks=False"),
    ],
    "private_digits.py": [("default=200", "default=10"), ("delta=1e-4", "delta=1e-4, accountant='rdp'")],
}

AS_A_USER = "private_digits.py"
"""The short example that is started by the interpreter; the others are by a process that has loaded the package."""
AS_PROGRAM = """
import runpy, sys
from pathlib import Path
del sys.argv[0]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
NEEDS = {"lightning_loop.py": "lightning", "hugging_face_trainer.py": "transformers"}  # no dependencies of ours
TESTED_ELSEWHERE = {"onnx_voter.py"}  # by tests/test_export.py: it takes an exported model and trains none


def test_every_example_has_its_line_in_the_readme():
    listed = (ROOT / "examples" / "README.md").read_text()
    programs = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sh")}
    assert programs | {"breast_cancer/run.sh"} == {*re.findall(r"^\| \[([\w/.]+)\]", listed, re.M)}


@pytest.mark.parametrize("size", ["short", pytest.param("whole", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted({path.name for path in (ROOT / "examples").glob("*.py")} - TESTED_ELSEWHERE))
def test_an_example_runs(name, size, tmp_path, tiny_run):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    program = tmp_path / "examples" / name
    for old, new in SHORTER.get(name, []) if size == "short" else []:
        text = program.read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
        program.write_text(text.replace(old, new))
    if size == "short" and name == "service_client.py":  # which trains only if there is no run
        shutil.copytree(tiny_run, tmp_path / "runs" / "example")
    if size == "short" and name != AS_A_USER:
        result = run_forked(AS_PROGRAM, program, "runs/example", cwd=tmp_path)
    else:
        result = subprocess.run(
            [sys.executable, program, "runs/example"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True, text=True, timeout=SECONDS[size], check=False,
        )  # fmt: skip
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


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_slurm_script_starts_a_run_or_resumes_it(is_resumed, tmp_path):
    """With a Slurm that only says what it is asked: no cluster is here."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho first-machine\necho second-machine\n")
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$OMP_NUM_THREADS" "$@"\n')
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    if is_resumed:
        (tmp_path / "config.toml").touch()
    slurm = {"SLURM_JOB_NODELIST": "x", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "16"}
    answer = subprocess.run(
        [ROOT / "examples" / "slurm.sh"], capture_output=True, text=True, check=True,
        env=os.environ | slurm | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path)},
    )  # fmt: skip
    threads, *words = answer.stdout.split()
    assert threads == "4"
    assert words[:5] == ["torchrun", "--nnodes", "2", "--nproc-per-node", "4"]
    assert words[words.index("--rdzv-endpoint") + 1] == "first-machine:29500"
    own = words[words.index("securesgd") + 1 :]
    settings = ["--resume"] if is_resumed else ["--dataset", "mnist", "--method", "dpsgd", "--epsilon", "3"]
    assert own == ["train", *settings, "--out", str(tmp_path)]
