"""The documents name functions, tests, settings and commands that exist."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from securesgd.baselines.adlm.budget import AdlmSettings
from securesgd.config import RobustnessSettings, RunConfig
from securesgd.data.settings import DataSettings
from securesgd.models.interval_network import IntervalSettings
from securesgd.training.settings import TrainingSettings

ROOT = Path(__file__).parents[1]
REFERENCE = re.compile(r"`((?:tests/|src/securesgd/)?[\w/]+\.py)::(\w+)`")


def references():
    for document in sorted((ROOT / "docs").rglob("*.md")):
        for file, name in REFERENCE.findall(document.read_text()):
            if not file.startswith(("tests/", "src/")):
                base = "tests" if Path(file).name.startswith("test_") else "src/securesgd"
                file = f"{base}/{file}"
            yield pytest.param(file, name, id=f"{document.name}:{name}")


@pytest.mark.parametrize(("file", "name"), list(references()))
def test_reference_exists(file, name):
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_links_between_documents_exist():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_api_page_is_that_of_the_docstrings():
    """`make docs` writes it."""
    namespace = {"__file__": str(ROOT / "docs" / "build_api.py"), "__name__": "build_api"}
    exec(compile((ROOT / "docs" / "build_api.py").read_text(), "build_api.py", "exec"), namespace)
    assert (ROOT / "docs" / "reference" / "api.md").read_text() == namespace["page"]()


TABLES = ("robustness", "adlm", "interval", "data", "training")


def test_every_setting_is_on_the_page_of_settings():
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text()
    for table in (RunConfig, RobustnessSettings, TrainingSettings, AdlmSettings, IntervalSettings, DataSettings):
        for field in dataclasses.fields(table):
            assert field.name in TABLES or f"`{field.name}`" in page, field.name
