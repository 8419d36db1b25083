"""Write what the package is made of: the bill of materials that the wheel carries, and the list of licences.

    python release/bill_of_materials.py            (make dist does it)

Versions are those of constraints.txt; who needs whom and under which licence is what the installed packages say of
themselves. The packages are those that `pip install securesgd` and its extras bring on Linux with a CPU build of torch;
what only development needs (the extra `dev`) is not among them. The same constraints give the same bytes.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SBOM, LICENSES = ROOT / "release" / "securesgd.cdx.json", ROOT / "LICENSES.md"
# SPDX names of what packages say in words of their own.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


@dataclass(frozen=True, order=True)
class Package:
    """One package of the bill: its name as an index has it, version, licence and the names of those it needs."""

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]
    scope: str
    """`required`, or the extras that bring it."""


def constraints() -> dict[str, str]:
    """Return the version of each package in constraints.txt."""
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def licence(name: str) -> str:
    """Return the SPDX expression of an installed package. Raises: SystemExit if it does not say any that is known."""
    facts = metadata(name)
    words = [line.rpartition("::")[2].strip() for line in facts.get_all("Classifier", []) if line.startswith("License")]
    stated = facts.get("License-Expression") or _one_line(facts.get("License")) or (words[0] if words else "")
    stated = SPDX.get(re.sub(r" \(.*\)$", "", stated), stated)
    if not re.fullmatch(r"[A-Za-z0-9.-]+( (AND|OR|WITH) [A-Za-z0-9.-]+)*", stated) or stated in ("", "UNKNOWN"):
        raise SystemExit(f"{name} states its licence as {stated!r}; add its SPDX name to SPDX in {Path(__file__).name}")
    return stated


def _one_line(text: str | None) -> str | None:
    """Return a licence field that is a name; None for a whole licence text, which begins with anything."""
    return text.strip() if text and text.strip() != "UNKNOWN" and "\n" not in text.strip() else None


def needed(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return the names that an installed package needs here, with these extras of it."""
    environments = [{"extra": extra} for extra in ("", *extras)]
    wanted = map(Requirement, requires(name) or [])
    return {
        canonicalize_name(want.name)
        for want in wanted
        if want.marker is None or any(want.marker.evaluate(environment) for environment in environments)
    }


def packages() -> list[Package]:
    """Return the packages that the project and its extras bring, by name. Raises: SystemExit if one is not known."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: listed for name, listed in project["optional-dependencies"].items() if name != "dev"}
    found: dict[str, set[str]] = {}
    graph: dict[str, set[str]] = {}
    for scope, listed in {"required": project["dependencies"], **extras}.items():
        open_names = [(canonicalize_name(want.name), tuple(want.extras)) for want in map(Requirement, listed)]
        while open_names:
            name, chosen = open_names.pop()
            if scope in found.setdefault(name, set()):
                continue
            found[name].add(scope)
            try:
                graph[name] = graph.get(name, set()) | needed(name, chosen)
            except PackageNotFoundError:
                raise SystemExit(f"{name} of the extra {scope} is not installed; pip install '.[{scope}]'") from None
            open_names += [(other, ()) for other in graph[name]]
    versions = constraints()
    if unknown := sorted(set(found) - set(versions)):
        raise SystemExit(f"constraints.txt has no version of {', '.join(unknown)}; add them")
    for name in found:
        if (installed := version(name).partition("+")[0]) != versions[name]:  # torch says +cpu, say
            raise SystemExit(f"{name} {installed} is installed, constraints.txt has {versions[name]}; install that one")
    return [
        Package(
            name, versions[name], licence(name), tuple(sorted(graph[name])),
            "required" if "required" in scopes else ", ".join(sorted(scopes)),
        )
        for name, scopes in sorted(found.items())
    ]  # fmt: skip


def bill(parts: list[Package]) -> str:
    """Return the packages as CycloneDX 1.6, without a time or a random number."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = sorted(canonicalize_name(Requirement(text).name) for text in project["dependencies"])
    own = f"pkg:pypi/securesgd@{project['version']}"
    links = {part.name: f"pkg:pypi/{part.name}@{part.version}" for part in parts}
    record = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": own, "name": "securesgd", "version": project["version"], "purl": own,
                "licenses": [{"expression": project["license"]}],
            },
        },
        "components": [
            {
                "type": "library", "bom-ref": links[part.name], "name": part.name, "version": part.version,
                "scope": "required" if part.scope == "required" else "optional",
                "licenses": [{"expression": part.licence}], "purl": links[part.name],
            }
            for part in parts
        ],
        "dependencies": [
            {"ref": own, "dependsOn": [links[name] for name in direct]},
            *({"ref": links[part.name], "dependsOn": [links[name] for name in part.needs]} for part in parts),
        ],
    }  # fmt: skip
    return json.dumps(record, indent=1) + "\n"


def licence_page(parts: list[Package]) -> str:
    """Return the list of licences as a page."""
    lines = [
        "# Licences of the dependencies",
        "",
        "securesgd is under Apache-2.0 ([LICENSE](LICENSE)). It contains no code of the packages below: pip installs",
        "them. Versions are those of constraints.txt; *brought by* is `required` or the extras that need a package.",
        "Made by `release/bill_of_materials.py`, from what the packages say of themselves.",
        "",
        "| package | version | licence | brought by |",
        "|---|---|---|---|",
        *(f"| {part.name} | {part.version} | {part.licence} | {part.scope} |" for part in parts),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files, and say where they are."""
    parts = packages()
    for path, text in ((SBOM, bill(parts)), (LICENSES, licence_page(parts))):
        path.write_text(text)
        print(path.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
