"""The package is built in layers, each importing only from those before it; a file is one concept of readable size."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "securesgd"

# A row is a layer; its parts may import each other and everything in the rows above.
LAYERS = (
    ("errors", "validate"),
    ("theory",),
    ("runtime",),
    ("privacy",),
    ("data",),
    ("models",),
    ("clipping",),
    ("training",),
    ("baselines",),
    ("config", "methods", "presets"),
    ("config_template", "fitted_config", "own_config"),
    ("build",),
    ("planning",),
    ("certificates",),
    ("attacks",),
    ("audit",),
    ("check", "report"),
    (
        "export",
        "new_inputs",
        "own_loop",
        "predict_files",
        "prediction",
        "run",
        "run_check",
        "run_data",
        "run_job",
        "run_training",
    ),
    ("tuning", "tuning_folder", "tuning_search"),
    ("reproduce",),
    ("serve",),
    ("cli",),
    ("", "__main__"),  # the front doors: securesgd/__init__.py, and `python -m securesgd`
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
VERSION = ("", "__version__")  # a plain string of the front door, which every layer may record

# Imports against the order that are still there: (file, imported part). To be emptied, never to grow.
KNOWN: set[tuple[str, str]] = set()

# What works without torch, but for what is known to load it still.
NO_TORCH = (
    "__init__.py", "errors.py", "validate.py", "theory/", "privacy/", "report/", "certificates/summary.py",
    "certificates/recheck.py", "check/__init__.py", "check/evidence.py", "check/folder.py", "check/manifest.py",
    "check/outcome.py", "check/pages.py", "check/records.py", "check/result_claims.py", "check/training_claims.py",
    "attacks/recheck.py", "attacks/robust_accuracy.py", "attacks/settings.py", "data/catalog.py",
    "audit/record.py", "cli/__init__.py", "data/fetch.py", "data/places.py", "reproduce/plots.py",
)  # fmt: skip
KNOWN_TORCH: set[str] = set()

LONGEST, SHORTEST = 400, 40
KNOWN_LONG: set[str] = set()
SHORT = {
    "training/read_ahead.py": "reading a step ahead, which is about threads and not about examples",
    "__main__.py": "`python -m securesgd` is the command line and nothing else",
    "cli/export.py": "a command is an edge",
    "cli/sign.py": "a command is an edge",
    "theory/rounding.py": "one rule of rounding for every printed bound",
}
KNOWN_SILENT: set[str] = set()

SOURCES = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def imports(file: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield (module inside the package, name or "") of every import in a file, also in functions and TYPE_CHECKING."""
    here = ["securesgd", *Path(file).parent.parts]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            pairs = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            pairs = [(module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in pairs:
            package, _, inner = module.partition(".")
            if package == "securesgd":
                yield inner, name


def part_of(module: str, name: str = "") -> str:
    """Return the part of the package, a row entry of LAYERS, that an import or a file belongs to."""
    return module.split(".")[0] or (name if name in LEVEL else "")


def against_the_order(file: str, source: str) -> set[tuple[str, str]]:
    """Return (file, part) of each import from a later layer."""
    own = LEVEL[part_of(file.removesuffix(".py").removesuffix("__init__").replace("/", "."))]
    wanted = {part_of(*pair) for pair in imports(file, source) if pair != VERSION}
    return {(file, part) for part in wanted if LEVEL[part] > own}


def test_every_import_goes_down_the_layers():
    assert set().union(*(against_the_order(*item) for item in SOURCES.items())) - KNOWN == set()


@pytest.mark.parametrize(
    "line",
    [
        "import securesgd.attacks.settings",
        "from securesgd.attacks import settings",
        "from securesgd import attacks",
        "from securesgd import certify",
        "from ..attacks.settings import attack_settings",
        "from .. import attacks",
        "def f():\n    from securesgd.attacks.settings import attack_settings",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from securesgd.attacks import settings",
    ],
)
def test_a_forbidden_import_is_noticed(line):
    assert against_the_order("theory/gaussian.py", line)
    assert not against_the_order("cli/attack.py", line) or "certify" in line


def test_an_allowed_import_is_not():
    assert not against_the_order(
        "models/noisy.py", "from securesgd import __version__\nfrom ..theory import gaussian\n"
    )
    assert not against_the_order("models/noisy.py", "import torch\nfrom .scale import Scale\nimport securesgd.errors\n")


def test_every_part_of_the_package_is_in_the_order():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == set(LEVEL) - {""}


def test_the_mathematics_knows_nothing_of_torch():
    for file, source in SOURCES.items():
        if file.startswith("theory/"):
            for node in ast.walk(ast.parse(source)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not [name for name in names if name.split(".")[0] == "torch"], file


def test_what_works_without_torch_does_not_load_it():
    """In one process: after each import, is torch there?"""
    files = [file for file in SOURCES if file.startswith(NO_TORCH) and file not in KNOWN_TORCH]
    modules = [".".join(["securesgd", *Path(file).with_suffix("").parts]).removesuffix(".__init__") for file in files]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    if 'torch' in sys.modules:\n        sys.exit(name + ' loads torch')\n"
    result = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_no_file_is_too_long_or_too_short():
    lines = {file: len(source.splitlines()) for file, source in SOURCES.items()}
    assert {file for file in lines if lines[file] > LONGEST} - KNOWN_LONG == set(), "which second concept is in it?"
    short = {file for file in lines if lines[file] < SHORTEST and not file.endswith("__init__.py")}
    assert short - set(SHORT) == set(), "to which file does it belong?"
    assert all(SHORT.values())


def test_every_folder_says_what_lives_there():
    """Two sentences: what is in it, and what may be imported from it."""
    docstrings = {file: ast.get_docstring(ast.parse(SOURCES[file])) or "" for file in SOURCES if "__init__" in file}
    silent = {file for file, text in docstrings.items() if len(re.findall(r"\S\.(?=\s|$)", text)) < 2}
    assert silent - KNOWN_SILENT == set()


def test_the_exceptions_are_needed():
    """An entry whose reason is gone must go too."""
    lines = {file: len(source.splitlines()) for file, source in SOURCES.items()}
    violations = set().union(*(against_the_order(*item) for item in SOURCES.items()))
    assert KNOWN - violations == set()
    assert {file for file in KNOWN_LONG if lines.get(file, 0) <= LONGEST} == set()
    assert {file for file in SHORT if not 0 < lines.get(file, 0) < SHORTEST} == set()
