"""Every benchmark can be loaded: what it measures has not been renamed. They run by `make bench`."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_a_benchmark_loads(file, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    assert runpy.run_path(str(file), run_name="loaded")["__doc__"]
