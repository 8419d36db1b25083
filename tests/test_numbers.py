"""Every measured number in README and docs is found in a row of `results/`.

A number is looked up in the files its section links to (for a picture: in its folder; without a link: everywhere): some
value there must round to it, as it is or in per cent. What is no measurement (settings, published numbers, mathematics)
is named below.
"""

import json
import re
from pathlib import Path

import pytest

from tests.markdown import blocks
from tests.recorded_numbers import NUMBER, ROOT, is_there

CODE = re.compile(r"```.*?```|`[^`]*`", re.S)
LINK = re.compile(r"\]\((?:\.\./)*(results/[^)#]+)\)")
# Settings of runs, versions, published numbers and mathematics: no measurements of ours.
NOT_MEASURED = {
    "README.md": {
        "3.11": "Python", "1906.01444": "arXiv", "0.987": "Tramèr & Boneh",
    },
    "docs/speed.md": {
        "1.6": "Opacus", "0.1": "a version", "0.2": "a version", "2.0": "jax-privacy", "1.15": "an aim",
        "1.3": "an aim", "1.25": "an aim",
    },
    "docs/results.md": {
        "0.933": "DP-CERT", "0.813": "DP-CERT", "1.354": "DP-CERT", "0.690": "DP-CERT", "1.185": "DP-CERT",
        "0.987": "Tramèr & Boneh", "0.897": "Tramèr & Boneh", "0.693": "Tramèr & Boneh",
        "0.036": "a setting", "0.1": "a setting", "0.5": "a setting", "0.25": "a radius", "1.0": "a radius",
        "0.04": "a radius", "0.06": "a radius", "0.08": "a radius", "0.02": "a radius",
        "1.2": "a budget", "2.9": "a budget", "0.979": "published, not private", "0.646": "published, not private",
    },
    "docs/reference/adlm.md": {
        "0.348": "a published scale", "6.71": "a published scale", "72.6": "a published scale",
        "812.5": "a published sensitivity", "0.3": "a budget",
    },
    "docs/start.md": {
        "3.11": "Python", "0.05": "a radius",
    },
    "docs/how-to/audit.md": {"0.256": "a setting", "1.02": "a setting", "5.2": "a theorem"},
}  # fmt: skip
MEASURED = (
    "README.md",
    "docs/start.md",
    "docs/results.md",
    "docs/speed.md",
    "docs/reference/adlm.md",
    "docs/how-to/audit.md",
)


def sections(document):
    """Pairs of heading and text of a document, code left out."""
    text = CODE.sub(" ", (ROOT / document).read_text())
    parts = re.split(r"^(#+ .*)$", text, flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def numbers():
    for document in MEASURED:
        for heading, text in sections(document):
            files = sorted(
                {link if not link.endswith(".png") else str(Path(link).parent) for link in LINK.findall(text)}
            )
            words = re.sub(r"\]\([^)]*\)", "]", text)
            for number in sorted(set(NUMBER.findall(words))):
                if number not in NOT_MEASURED.get(document, {}):
                    yield pytest.param(number, tuple(files), id=f"{document}:{heading.strip('# ')}:{number}")


@pytest.mark.parametrize(("number", "files"), list(numbers()))
def test_a_stated_number_is_in_the_results(number, files):
    assert is_there(number, files), f"{number} is in no row of {', '.join(files) or 'results'}"


def test_the_start_page_shows_lines_of_its_recorded_run():
    """`release/start_page.py` made the rows; frames of tables and blanks may differ, numbers may not."""
    rows = (ROOT / "results" / "start" / "rows.jsonl").read_text().splitlines()
    printed = [plain(line) for row in rows for line in json.loads(row)["printed"]]
    shown = [line for block in blocks(ROOT / "docs" / "start.md")[3:] if block.kind == "printed"
             for line in block.text.splitlines()]  # fmt: skip
    assert len(shown) > 15
    for line in shown:
        start, cut, _ = line.partition("…")
        assert any(other.startswith(plain(start)) if cut else other == plain(line) for other in printed), line


def plain(line):
    return " ".join(re.sub(r"[─-╿]", " ", line).split())


def test_the_search_finds_what_is_there_and_misses_what_is_not():
    assert is_there("0.8170", ()) or is_there("0.9817", ())
    assert not is_there("0.98171", ("results/mnist-dpsgd/rows.csv",))
    assert not is_there("0.1234", ("results/mnist-dpsgd/rows.csv",))
