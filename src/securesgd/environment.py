"""What a result was made with: versions, machine and command, recorded beside every set of rows."""

__all__ = ["environment"]

import importlib.metadata
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = ("securesgd", "torch", "numpy", "scipy", "dp-accounting", "matplotlib")


def environment() -> dict[str, Any]:
    """Return versions, machine and command line. Nothing in it names a path or a user."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "command": " ".join(Path(word).name if Path(word).is_absolute() else word for word in sys.argv),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
    }


def _version(package: str) -> str | None:
    """Return the version of a package, or None: figures are drawn without torch, too."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
