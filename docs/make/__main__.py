"""Write the pages that are made from the code, and the tables of results.md from rows: `python docs/make`."""

import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS.parent))

from docs.make import api, cli, results, settings  # noqa: E402

PAGES: dict[str, Callable[[], str]] = {
    "reference/api.md": api.api_page,
    "reference/modules.md": api.modules_page,
    "reference/cli.md": cli.page,
    "reference/settings.md": settings.page,
    "results.md": results.page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
