"""docs/reference/api.md, the public names, and modules.md, what lies below them: from the docstrings and signatures."""

import importlib
import inspect
import re
from types import ModuleType
from typing import Any

import securesgd

# By what a reader wants to do; every public name is in one group.
PUBLIC = {
    "Data": ("load_data", "LoadedData", "DataSettings"),
    "Models": ("NoisyNetwork", "ScaleLearning", "IntervalNetwork", "network"),
    "Training": (
        "train", "PrivateTraining", "tune", "StepReport", "TrainingInterrupted", "tensorboard_logger",
        "PrivacyStatement",
    ),
    "A trained run": ("load_run", "Run", "Prediction", "Evaluation", "check_run"),
    "Certificates": (
        "certify", "CertifySettings", "Certificates", "verify", "CertifiedClassifier", "lipschitz_radius",
        "LipschitzRadii",
    ),
    "The Gaussian mechanism": ("HeterogeneousGaussianMechanism", "Release"),
    "Errors": ("SecureSGDError", "InvalidInputError", "DamagedFileError", "PrivacyError"),
}  # fmt: skip
# In the order of the data path. A name is documented where its package (or module) says `__all__`.
MODULES = (
    "securesgd.theory", "securesgd.privacy", "securesgd.data.load", "securesgd.models.redistribution",
    "securesgd.models.noisy", "securesgd.models.control", "securesgd.models.networks", "securesgd.models.predict",
    "securesgd.training.loop", "securesgd.training.settings", "securesgd.certificates.record",
    "securesgd.certificates.certify", "securesgd.certificates.verify", "securesgd.attacks.settings",
    "securesgd.attacks.harness", "securesgd.attacks.evaluate", "securesgd.attacks.falsify", "securesgd.methods",
    "securesgd.config", "securesgd.run", "securesgd.report.page", "securesgd.reproduce.reproduce",
)  # fmt: skip
API_HEAD = """# Python API

Made from signatures and docstrings by `make docs`. After `import securesgd as ss` these names are `ss.train`,
`ss.load_run` and so on. They are the public interface: whatever is not on this page may change without notice. The
layers below them, for those who build on a part of the package, are on the page [modules](modules.md).
"""
MODULES_HEAD = """# Modules

Made from signatures and docstrings by `make docs`. What lies below the [public names](api.md), in the order of the data
path. A stage of the path is a package; what it hands on are plain records. Names and signatures may change between
releases.
"""


def api_page() -> str:
    """Return the text of docs/reference/api.md. Raises: LookupError if a public name is in no group."""
    grouped = [name for names in PUBLIC.values() for name in names]
    if sorted([*grouped, "__version__"]) != sorted(securesgd.__all__):
        raise LookupError(f"in no group, or not public: {set(grouped) ^ set(securesgd.__all__) - {'__version__'}}")
    parts = [API_HEAD]
    for group, names in PUBLIC.items():
        parts.append(f"\n## {group}\n")
        parts += [_entry(securesgd, name) for name in names]
    return "".join(parts)


def modules_page() -> str:
    """Return the text of docs/reference/modules.md."""
    parts = [MODULES_HEAD]
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(f"\n## `{name}`\n\n{_paragraphs(module.__doc__)}\n")
        parts += [_entry(module, public) for public in module.__all__ if not public.startswith("_")]
    return "".join(parts)


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if module is not securesgd and getattr(securesgd, name, None) is value:
        return f"\n### {name}\n\nA public name: [API](api.md#{name.lower()}).\n"
    if not callable(value):
        shown = ", ".join(map(str, value)) if isinstance(value, dict | tuple | list) else value
        return f"\n### {name}\n\n{shown}\n"
    text = f"\n### {name}\n\n```py\n{name}{_signature(value)}\n```\n\n{_paragraphs(value.__doc__)}\n"
    if inspect.isclass(value):
        for member, function in vars(value).items():
            inner = getattr(function, "__func__", getattr(function, "fget", None) or function)
            if member.startswith("_") or not inspect.isfunction(inner):
                continue
            signature = "" if isinstance(function, property) else _signature(inner)
            text += f"\n```py\n.{member}{signature}\n```\n\n{_paragraphs(inner.__doc__)}\n"
    return text


def _signature(value: Any) -> str:
    """Return parameters with types and defaults, and the type that is returned; each on a line of its own if long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    kept = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    returned = inspect.Signature.empty if inspect.isclass(value) else signature.return_annotation
    text = _plain(str(inspect.Signature(kept, return_annotation=returned)))
    if len(text) <= 90:
        return text
    lines, star = [], False
    for parameter in kept:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        lines.append(f"    {_plain(str(parameter))},")
    end = "" if returned is inspect.Signature.empty else f" -> {_plain(inspect.formatannotation(returned))}"
    return "\n".join(["(", *lines, f"){end}"])


def _plain(text: str) -> str:
    """Return types without the modules they are in; a default that is an object is an ellipsis."""
    text = re.sub(r"<[^>]*>", "…", text)
    text = text.replace("torch.nn.modules.module.", "nn.").replace("torch.nn.", "nn.")
    return re.sub(r"\b(?:securesgd|torch|pathlib|numpy|collections|typing)\.(?:[a-z_]\w*\.)*", "", text)


def _paragraphs(doc: str | None) -> str:
    """Return a docstring; what is laid out in columns or indented stays as it is, Guarantee and so on begin a line."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(doc or ""))
    shown = []
    for block in blocks:
        if re.search(r"^(=+ |    )|\S {3,}\S", block, re.M) and not re.match(_HEADS, block):
            shown.append(f"```text\n{block}\n```")
        else:
            shown.append(re.sub(rf"(?:^|\n)({_HEADS})", r"\n\n**\1** ", block).strip().replace("**  ", "** "))
    return "\n\n".join(shown)


_HEADS = r"(?:Guarantee|Assumes|Raises|Reference|References|Returns|Privacy|Adjacency):"
