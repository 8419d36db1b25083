"""docs/reference/settings.md: every setting with its type, default and meaning, read from the settings themselves."""

import dataclasses
import inspect
from typing import Any

from securesgd.baselines.adlm.budget import AdlmSettings
from securesgd.config import RobustnessSettings, RunConfig
from securesgd.config_template import field_documentation
from securesgd.data.settings import DataSettings
from securesgd.models.interval_network import IntervalSettings
from securesgd.training.settings import TrainingSettings

HEAD = """# Settings

Made from the settings themselves by `make docs`. `securesgd train` takes the preset of the data set and method (for
data of your own fitted to their number and shape), then `--config file.toml`, then `--set key=value`; the later one
counts. The result is `config.toml` in the run folder, which can be given to `--config` again. A key that does not exist
is refused with the nearest that does.

```
securesgd config --template --dataset digits --method secure-sgd
```

prints a whole file to start from: every setting with its value for that data set and method, and what it means.
"""
TABLES: dict[str, tuple[type, str]] = {
    "at the top": (RunConfig, "Of the run as a whole."),
    "[training]": (
        TrainingSettings,
        "`private` to `noise_seed` change what is claimed, `learning_rate` to `consistency` the result, others speed.",
    ),
    "[robustness]": (RobustnessSettings, "For the methods that smooth: how much noise the network has, and where."),
    "[interval]": (IntervalSettings, "For the methods `ibp` and `dp-ibp` ([interval bounds](interval.md))."),
    "[data]": (DataSettings, "For a table, a folder of images or a `.npz` file of your own."),
    "[adlm]": (AdlmSettings, "For the method `adlm`, a baseline without guarantee ([AdLM](adlm.md))."),
}


def page() -> str:
    """Return the text of docs/reference/settings.md."""
    return "\n".join([HEAD.rstrip(), *(_table(name, *about) for name, about in TABLES.items())]) + "\n"


def _table(name: str, settings: Any, words: str) -> str:
    documentation = field_documentation(settings)
    rows = [f"\n## Settings {name}\n", words, "", "| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(settings):
        kind = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
        if kind.startswith("securesgd.") or "Settings" in kind:
            continue  # a table of its own
        meaning = " ".join(documentation[field.name].split()).replace("|", "\\|")
        rows.append(f"| `{field.name}` | {_type(kind)} | {_default(field)} | {meaning} |")
    return "\n".join(rows)


def _type(kind: str) -> str:
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
    if kind.startswith("typing.Literal") or kind.startswith("Literal"):
        return "text"
    return names[kind.removesuffix(" | None")]


def _default(field: Any) -> str:
    if field.default is dataclasses.MISSING:
        return "by the preset"
    if field.default is None:
        return "not set"
    return f"`{str(field.default).lower()}`" if isinstance(field.default, bool) else f"`{field.default}`"
