"""The report as people see it: headless Chromium, on a desktop and a phone, light, dark and on paper."""

import json
import re
import shutil
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from securesgd.report.page import report
from securesgd.report.svg_chart import COLOURS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
SIZES = {"desktop": 1280, "phone": 390}
# What a person would notice first.
PROBE = """() => {
  const page = document.documentElement, pictures = [...document.images, ...document.querySelectorAll("svg.plot")];
  const size = e => e.getBoundingClientRect(), folded = e => e.closest("details:not([open])") && !e.closest("summary");
  const inside = e => e.closest(".wide, .chart");
  const boxes = [...document.querySelectorAll("h1, h2, h3, h4, p, table, img, svg.plot, figcaption, summary, pre")]
    .filter(e => !folded(e) && !e.closest(".wide table *")).map(e => [e, size(e.closest(".wide") || e)]);
  return {
    overflow: page.scrollWidth - page.clientWidth,
    pictures: pictures.length,
    empty: pictures.filter(e => e.naturalWidth === 0 || size(e).height < 20 || size(e).width < 50).length,
    unnamed: pictures.filter(e => !(e.alt || e.getAttribute("aria-label"))).length,
    open: document.querySelectorAll("details[open]").length,
    cut: [...document.querySelectorAll(".wide")].filter(e => e.scrollWidth > e.clientWidth + 1).length,
    overlaps: boxes.filter(([e, a]) => boxes.some(([f, b]) => e !== f && !e.contains(f) && !f.contains(e)
      && !(inside(e) && inside(e) === inside(f))
      && a.height && b.height && a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 2
      && b.top < a.bottom - 2)).map(([e]) => e.tagName + ":" + e.textContent.trim().slice(0, 30)),
  };
}"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tiny_run, tmp_path_factory):
    """The report of one run, and of two that differ in their steps."""
    place = tmp_path_factory.mktemp("pages")
    other = Path(shutil.copytree(tiny_run, place / "other"))
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace("steps = 2\n", "steps = 3\n"))
    assert (other / "config.toml").read_text() != config
    report([tiny_run], place / "one.html")
    report([tiny_run, other], place / "two.html")
    return {"one": place / "one.html", "two": place / "two.html"}


@contextmanager
def shown(browser, path, size="desktop", scheme="light"):
    """The page at a size; what its console says is in `page.said`."""
    context = browser.new_context(viewport={"width": SIZES[size], "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.goto(path.as_uri())
    yield page
    context.close()


@needs_chromium
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["one", "two"])
def test_nothing_is_empty_overlaps_sticks_out_or_fails(name, size, browser, pages):
    with shown(browser, pages[name], size) as page:
        seen = page.evaluate(PROBE)
        assert page.said == []
    assert seen["pictures"] >= 3
    assert (seen["overflow"], seen["empty"], seen["unnamed"], seen["open"], seen["overlaps"]) == (0, 0, 0, 0, [])


@needs_chromium
def test_a_table_that_is_cut_on_a_phone_scrolls_by_itself_and_by_the_keyboard(browser, pages):
    with shown(browser, pages["one"], "phone") as page:
        assert page.evaluate(PROBE)["cut"] > 0
        for part in page.locator(".wide").all():
            assert part.get_attribute("tabindex") == "0"
            assert part.get_attribute("aria-label")
        cut = page.locator("[aria-label='Accuracies by class']")
        style = cut.evaluate("e => [getComputedStyle(e).overflowX, getComputedStyle(e).backgroundAttachment]")
        assert style == ["auto", "local, local, scroll, scroll"]  # a shadow where there is more to see
        cut.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        assert cut.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"


COLOURS_SHOWN = """() => {
  const style = s => getComputedStyle(document.querySelector(s));
  const text = style(".plot text").fill;
  return { paper: style("body").backgroundColor, line: style(".plot .line path").stroke, text };
}"""


@needs_chromium
def test_charts_are_dark_in_dark_mode_and_light_on_paper(browser, pages):
    with shown(browser, pages["one"]) as page:
        light = page.evaluate(COLOURS_SHOWN)
    with shown(browser, pages["one"], scheme="dark") as page:
        dark = page.evaluate(COLOURS_SHOWN)
        page.emulate_media(media="print", color_scheme="dark")
        printed = page.evaluate(COLOURS_SHOWN)
        assert page.locator("details p").first.evaluate("e => e.getBoundingClientRect().height") > 10  # folded out
    assert all(light[part] != dark[part] for part in light)
    assert printed == light
    assert light["paper"] == "rgb(255, 255, 255)"


@needs_chromium
def test_the_probe_notices_a_broken_page(browser, pages, tmp_path):
    broken = (
        "<p style='position:absolute;top:200px;left:0;width:3000px;height:600px'>over everything</p>"
        "<img src='data:image/png;base64,AAAA'><details open></details><script>console.error('no')</script></body>"
    )
    path = tmp_path / "broken.html"
    path.write_text(pages["one"].read_text().replace("</body>", broken))
    with shown(browser, path) as page:
        seen = page.evaluate(PROBE)
        assert page.said == ["no"]
    assert seen["overflow"] > 1000
    assert (seen["empty"], seen["unnamed"], seen["open"]) == (1, 1, 1)
    assert any("over everything" in text for text in seen["overlaps"])


def variables(rules):
    return {name: int(value, 16) for name, value in re.findall(r"--(\w+): #([0-9a-f]{6});", rules)}


def luminance(colour):
    parts = [(colour >> shift & 255) / 255 for shift in (16, 8, 0)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["report/page.html.j2", "serve/page.html"])
def test_text_and_lines_have_the_contrast_of_wcag_aa(page, scheme):
    style = (files("securesgd") / page).read_text().split("<style>")[1].split("</style>")[0]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = variables(light) | (variables(dark) if scheme == "dark" else {})
    assert contrast(0xFFFFFF, 0x000000) == 21
    grounds = [colours[name] for name in ("paper", "ground", "card", "mark") if name in colours]
    for name in ("ink", "soft", "good", "bad", "link", "blue"):
        if name in colours:
            weak = "mark" in colours and name not in ("ink", "soft")  # no such text on marked cells
            assert all(contrast(colours[name], ground) >= 4.5 for ground in (grounds[:-1] if weak else grounds)), name
    if "c0" in colours:
        assert all(contrast(colours[f"c{k}"], colours["paper"]) >= 3 for k in range(COLOURS))


def test_the_page_says_what_it_was_made_of(pages):
    (source,) = re.findall(r'id="source">(.*?)</script>', pages["two"].read_text())
    assert [run["called"] for run in json.loads(source)["runs"]] == ["run", "other"]
