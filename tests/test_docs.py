"""The documents name functions and tests that exist, generated pages are up to date, and the site is whole."""

import ast
import html
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

from docs.make.__main__ import PAGES

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REFERENCE = re.compile(r"`((?:tests/|src/securesgd/)?[\w/]+\.py)::(\w+)`")


def references():
    for document in DOCUMENTS:
        for file, name in REFERENCE.findall(document.read_text()):
            if not file.startswith(("tests/", "src/")):
                base = "tests" if Path(file).name.startswith("test_") else "src/securesgd"
                file = f"{base}/{file}"
            yield pytest.param(file, name, id=f"{document.name}:{name}")


@pytest.mark.parametrize(("file", "name"), list(references()))
def test_reference_exists(file, name):
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_links_between_documents_exist():
    """Links in the sources, which are read as they are, too; a page that was moved is looked for by its name."""
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:\s]+)[)#]", document.read_text()):
            found = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob(Path(target).name)]
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)}: {target}; there is {found}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_made_from_the_code_is_up_to_date(page):
    """`make docs` writes it."""
    assert (ROOT / "docs" / page).read_text() == PAGES[page]()


def test_pages_named_in_the_code_exist():
    for file in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "CHANGELOG.md"]:
        for page in re.findall(r"docs/[\w/-]+\.md", file.read_text()):
            assert (ROOT / page).exists(), f"{file.relative_to(ROOT)}: {page}"


class Page(HTMLParser):
    """What a page of the site links to and loads, and the anchors it has."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in ("script", "img", "link", "iframe") and (target := values.get("src") or values.get("href")):
            self.loaded.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert (built.returncode, built.stderr) == (0, "")
    return {path: Page(path) for path in folder.rglob("*.html") if path.name != "404.html"}


def broken(pages):
    """Return the links of pages that lead to no file or anchor of the site, and what comes from elsewhere."""
    found = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(html.unescape(link))
            if parts.scheme or parts.netloc:
                found += [f"{path.name} loads {link}"] if link in page.loaded else []
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and target in pages and not _has(pages[target], parts.fragment)):
                found.append(f"{path.name}: {link}")
    return found


def _has(page, anchor):
    return unquote(anchor) in page.anchors


def test_the_site_has_no_broken_link_and_loads_nothing_from_elsewhere(site):
    assert len(site) > 40
    assert broken(site) == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_search_of_the_site_finds_a_setting_first(site):
    from playwright.sync_api import sync_playwright

    folder = next(path for path in site if path.name == "start.html").parent
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.fill(".md-search__input", "micro_batch")
        page.wait_for_selector(".md-search-result__item h1")
        assert page.locator(".md-search-result__item h1").first.text_content() == "Settings"
        page.locator(".md-search-result__item a").first.click()
        page.wait_for_url("**/reference/settings.html*")
        browser.close()
        server.shutdown()


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html">b</a><a href="#there">x</a><p id="here"></p><a href="#here">y</a>'
    )
    (tmp_path / "c.html").write_text('<script src="https://example.invalid/x.js"></script><a href="a.html#no">a</a>')
    pages = {path: Page(path) for path in tmp_path.iterdir()}
    assert sorted(broken(pages)) == [
        "a.html: #there", "a.html: b.html", "c.html loads https://example.invalid/x.js", "c.html: a.html#no",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_pictures_are_those_the_package_draws(tmp_path):
    """`make pictures` draws them; a pixel may differ by how a version draws text."""
    from docs.make.pictures import FOLDER, PICTURES, draw

    draw(tmp_path)
    for name in PICTURES:
        kept, drawn = (np.asarray(Image.open(f / f"{name}.png").convert("L"), float) for f in (FOLDER, tmp_path))
        assert kept.shape == drawn.shape
        assert np.mean(np.abs(kept - drawn)) < 2, name
