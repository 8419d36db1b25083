"""What is released: metadata that agree, a current bill of materials, and a wheel that works where nothing else is."""

import csv
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import securesgd

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "serve": "import securesgd.serve.server",
    "export": "import onnx, onnxruntime, onnxscript",
    "parquet": "import pyarrow.parquet",
    "tensorboard": "from torch.utils.tensorboard import SummaryWriter",
    "docs": "import mkdocs, material",
}
"""By name: what works once the extra is installed."""


def program(name):
    """A program of release/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "release" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_one_version_is_everywhere():
    version = securesgd.__version__
    assert PROJECT["version"] == version
    assert re.search(rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text(), re.M)
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[:2] == ["Unreleased", version]
    assert re.search(
        rf"^## \[{re.escape(version)}\].*?^### Guarantees$", (ROOT / "CHANGELOG.md").read_text(), re.M | re.S
    )


def test_the_bill_of_materials_and_the_licences_are_those_of_the_constraints():
    """`make dist` writes them."""
    bill = program("bill_of_materials")
    parts = bill.packages()
    assert bill.SBOM.read_text() == bill.bill(parts), "run release/bill_of_materials.py"
    assert bill.LICENSES.read_text() == bill.licence_page(parts), "run release/bill_of_materials.py"
    pinned = bill.constraints()
    assert all(pinned[part.name] == part.version for part in parts)
    assert {"torch", "numpy", "fastapi", "onnxruntime"} <= {part.name for part in parts}
    assert "pytest" not in {part.name for part in parts}


def test_the_bill_of_materials_is_closed():
    record = json.loads((ROOT / "release" / "securesgd.cdx.json").read_text())
    own = record["metadata"]["component"]["bom-ref"]
    known = [own, *(part["bom-ref"] for part in record["components"])]
    assert len(set(known)) == len(known)
    assert sorted(entry["ref"] for entry in record["dependencies"]) == sorted(known)
    assert {name for entry in record["dependencies"] for name in entry["dependsOn"]} <= set(known)
    assert own == f"pkg:pypi/securesgd@{securesgd.__version__}"


def test_a_licence_that_is_not_known_stops_the_bill(monkeypatch):
    bill = program("bill_of_materials")
    monkeypatch.setattr(bill, "SPDX", {})
    with pytest.raises(SystemExit, match="add its SPDX name"):
        bill.packages()


def test_every_extra_is_tried():
    assert {*EXTRAS, "dev"} >= set(PROJECT["optional-dependencies"])


def outside(*command, cwd):
    """Run a command that knows nothing of this repository."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Wheel and sdist, as `make dist` builds them: the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    result = outside(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def empty(dist, tmp_path_factory):
    """A new environment with the wheel and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    python = folder / "venv" / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    for command in (
        (sys.executable, "-m", "venv", folder / "venv"),
        (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel),
    ):
        result = outside(*command, cwd=folder)
        assert result.returncode == 0, result.stderr
    return python


@pytest.mark.slow
def test_the_wheel_holds_its_bill_and_nothing_of_the_repository(dist):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    info = f"securesgd-{securesgd.__version__}.dist-info"
    assert f"{info}/sboms/securesgd.cdx.json" in names
    assert f"{info}/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {"securesgd", info}
    assert {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "securesgd").rglob("*.py")} <= {
        *names
    }


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(empty, tmp_path):
    def run(*words):
        result = outside(empty, "-m", "securesgd", *words, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        return result.stdout

    place = outside(empty, "-c", "import securesgd; print(securesgd.__file__)", cwd=tmp_path).stdout
    assert str(empty.parents[1]) in place, "an editable install would be another place"
    assert run("--version") == f"securesgd {securesgd.__version__}\n"
    assert outside(empty.with_name("securesgd"), "--version", cwd=tmp_path).returncode == 0
    small = ("--set", "steps=5", "--set", "copies=1", "--set", "batch_size=64")
    run("train", "--dataset", "digits", "--method", "secure-sgd", "--out", "run", *small)
    run("certify", "run", "--examples", "4", "--draws", "100")
    run("attack", "run", "--attack", "fgsm", "--examples", "2", "--eot", "2", "--draws", "50", "--no-probes")
    run("report", "run")
    assert "FAIL" not in run("check", "run", "--recompute", "2")
    for extra in ("serve", "export"):
        words = ("serve", "run") if extra == "serve" else ("export", "run", "--onnx", "m.onnx")
        result = outside(empty, "-m", "securesgd", *words, cwd=tmp_path)
        assert result.returncode == 2
        assert f"securesgd[{extra}]" in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("extra", [name for name in EXTRAS if name in PROJECT["optional-dependencies"]])
def test_an_extra_can_be_installed(extra, empty, dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    install = ("-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", f"{wheel}[{extra}]")
    result = outside(empty, *install, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = outside(empty, "-c", EXTRAS[extra], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    listed = outside(empty, "-m", "pip", "check", cwd=tmp_path)
    assert listed.returncode == 0, listed.stdout


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the rows were made with the arithmetic of x86-64")
def test_the_reference_runs_can_be_rebuilt_bit_for_bit(tmp_path):
    program = ROOT / "release" / "reference_runs.py"
    command = [sys.executable, program, "--out", tmp_path, "--rows", tmp_path / "rows.csv"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "rows.csv").read_text() == (ROOT / "results" / "reference" / "rows.csv").read_text()


def test_the_page_of_the_reference_runs_has_the_recorded_rows():
    page = (ROOT / "docs" / "reference" / "reference-runs.md").read_text()
    with (ROOT / "results" / "reference" / "rows.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert reference_line(row) in page, reference_line(row)


def reference_line(row):
    """A row of the table in the page."""
    epsilon, accuracy, proven = (float(row[name]) for name in ("epsilon", "accuracy", "right_and_proven"))
    digests = f"`{row['weights'][:16]}` | `{row['certificates'][:16]}`"
    place = f"{row['norm']} {row['radius']}"
    return f"| {row['run']} | {epsilon:.6f} | {accuracy:.4f} | {proven:.3f} at {place} | {digests} |"
