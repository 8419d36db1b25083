"""What a user imports: sorted, complete, and the mathematics without torch."""

import importlib
import pkgutil

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
