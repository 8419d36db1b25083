"""What a user imports: sorted, complete, and the mathematics without torch."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import securesgd

MODULES = [name for _, name, _ in pkgutil.walk_packages(securesgd.__path__, "securesgd.")]


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_exists(name):
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    by_kind = sorted(exported, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert list(exported) == by_kind
    assert all(hasattr(module, n) for n in exported)


@pytest.mark.parametrize("module", ["securesgd", "securesgd.theory", "securesgd.reproduce.plots", "securesgd.cli"])
def test_torch_is_not_loaded(module):
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
