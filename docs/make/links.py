"""A hook of MkDocs: what pages show of the rest of the repository comes along, and comments for tests stay behind.

Pages link to rows, programs and figures outside of docs/, as a reader of the sources needs it. In the site such a file
is below repository/, so that the site is whole wherever it is copied; a link to a folder leads to a list of its files.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s:]+)(?=[)#])")
TEST_COMMENT = re.compile(r"^<!-- test: .*?-->\n", re.M | re.S)
SEVERITY = re.compile(r"^- \*\*(critical|high|medium|low): ", re.M)
README = "index.md"
SEARCH_WEIGHT = {"reference/settings.md": 4, "reference/cli.md": 2, "reference/modules.md": 0.25}
"""Pages that answer a search before others, or after them."""


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs/ that pages link to."""
    pages = [file for file in files if file.is_documentation_page()]
    linked = {path for page in pages for path in _outside(page.src_uri, page.content_string) if path != "README.md"}
    for path in sorted(linked):
        if (ROOT / path).is_dir():
            inside = [f for f in sorted((ROOT / path).rglob("*")) if f.is_file()]
            names = [f"- [{f.relative_to(ROOT / path)}]({f.relative_to(ROOT / path)})" for f in inside]
            text = f"# {path}\n\n" + "\n".join(names) + "\n"
            files.append(File.generated(config, f"repository/{path}/index.md", content=text))
            linked = linked | {str(f.relative_to(ROOT)) for f in inside}
    for path in sorted(linked):
        if (ROOT / path).is_file():
            files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the text of a page with links to where the files are in the site, without comments for tests.

    A severity at the beginning of an entry becomes a label.
    """
    page.meta["search"] = {"boost": SEARCH_WEIGHT.get(page.file.src_uri, 1)}

    def moved(match: re.Match[str]) -> str:
        path = _repository_path(page.file.src_uri, match["target"])
        if path is None:
            return match[0]
        target = README if path == "README.md" else f"repository/{path}"
        target += "/index.md" if (ROOT / path).is_dir() else ""
        return match["before"] + os.path.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    markdown = SEVERITY.sub(r'- <span class="severity \1">\1</span> **', markdown)
    return LINK.sub(moved, TEST_COMMENT.sub("", markdown))


def _outside(page: str, text: str) -> Iterator[str]:
    for match in LINK.finditer(text):
        if path := _repository_path(page, match["target"]):
            yield path


def _repository_path(page: str, target: str) -> str | None:
    """Return the path from the root of the repository if a link leads out of docs/ to what is there, else None."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    inside = path.startswith(("docs/", "../")) or page.startswith("repository/")
    return None if inside or not (ROOT / path).exists() else path
