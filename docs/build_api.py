"""Write docs/reference/api.md from the docstrings. `make docs` runs this; a test checks that the page is up to date."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

# In the order of the data path. A name is documented where its package (or module) says `__all__`.
MODULES = (
    "securesgd", "securesgd.theory", "securesgd.privacy", "securesgd.data.load", "securesgd.models.redistribution",
    "securesgd.models.noisy", "securesgd.models.control", "securesgd.models.networks", "securesgd.models.predict",
    "securesgd.training.loop", "securesgd.training.settings", "securesgd.certificates.record",
    "securesgd.certificates.certify", "securesgd.certificates.verify", "securesgd.attacks.settings",
    "securesgd.attacks.harness",
    "securesgd.attacks.evaluate", "securesgd.attacks.falsify", "securesgd.methods", "securesgd.config", "securesgd.run",
    "securesgd.report.page", "securesgd.reproduce.reproduce",
)  # fmt: skip
HEAD = """# API

Made from the docstrings by `make docs`. A stage of the data path is a package; what it hands on are plain records.
Signatures leave out types; they are in the code, checked by mypy in strict mode.
"""


def page() -> str:
    """Return the text of docs/reference/api.md."""
    parts = [HEAD]
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(f"\n## `{name}`\n\n{_paragraphs(module.__doc__)}\n")
        parts += [_entry(module, public) for public in module.__all__ if not public.startswith("_")]
    return "".join(parts)


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if not callable(value):
        shown = tuple(value) if isinstance(value, dict | tuple | list) else value
        return f"\n**`{name}`** {', '.join(map(str, shown)) if isinstance(shown, tuple) else shown}\n"
    text = f"\n**`{name}{_signature(value)}`**\n\n{_paragraphs(value.__doc__)}\n"
    if inspect.isclass(value):
        for member, function in vars(value).items():
            inner = getattr(function, "__func__", function)
            if not member.startswith("_") and inspect.isfunction(inner):
                text += f"\n- `.{member}{_signature(inner)}` {_first(inner.__doc__)}"
        text = text.rstrip("\n") + "\n"
    return text


def _signature(value: Any) -> str:
    """Return the parameters with their defaults, without types."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    kept = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("self", "cls")]
    text = str(inspect.Signature(kept))
    return re.sub(r"<[^>]*>", "…", text)


def _paragraphs(doc: str | None) -> str:
    """Return a docstring; lines that belong together stay together, tables stay as they are."""
    text = inspect.cleandoc(doc or "")
    blocks = re.split(r"\n\s*\n", text)
    shown = [f"```\n{block}\n```" if re.search(r"^(=+ |    )", block, re.M) else block for block in blocks]
    return "\n\n".join(shown)


def _first(doc: str | None) -> str:
    return inspect.cleandoc(doc or "").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    (Path(__file__).parent / "reference" / "api.md").write_text(page(), encoding="utf-8")
