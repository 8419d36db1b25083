"""The claims of the pages in a run folder: report and model card say what the records give, and nothing else. No torch.

Both are functions of the records, so they are made again in memory and compared with what is there.
"""

__all__ = ["PAGE_CLAIMS"]

import re
from dataclasses import replace
from typing import Any

from securesgd import __version__
from securesgd.check.evidence import Evidence
from securesgd.check.outcome import Claim, NotCheckable
from securesgd.errors import DamagedFileError
from securesgd.report.model_card import model_card
from securesgd.report.page import render_again
from securesgd.report.run_record import RunRecord, read_run
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import parse_json, read_bytes

_SOURCE = re.compile(r'<script type="application/json" id="source">(.*?)</script>')
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]*")
_TAG = re.compile(r"<[^>]*>")
_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
_SHOWN = 100
_LONGEST_NAME = 255
"""Characters of a part of a path."""


def _check_report(evidence: Evidence) -> str:
    """Return that report.html is what the records render to now, charts included; PNG pictures are not compared."""
    text = read_bytes(evidence.path(names.REPORT)).decode("utf-8")
    found = _SOURCE.findall(text)
    if len(found) != 1:
        raise DamagedFileError("report.html does not say what it was made of: securesgd report writes it anew")
    source = parse_json(found[0])
    if len(source["runs"]) != 1:
        raise NotCheckable(
            f"report.html is about {len(source['runs'])} runs; securesgd report RUN makes one of this run"
        )
    called = _require_no_claims(source)
    stated, true = (_PICTURE.sub("", page) for page in (text, render_again(evidence.folder, source)))
    if stated != true:
        if source["version"] != __version__:
            raise NotCheckable(f"report.html was made by version {source['version']}, this is {__version__}")
        raise DamagedFileError(f"report.html {_difference(stated, true)}: securesgd report writes it anew")
    return (
        f"it is what the files of the run give now, word for word; it calls the folder “{called}”; its PNG pictures "
        "were not compared"
    )


def _require_no_claims(source: Any) -> str:
    """Return what a page calls its folder, if what it says of itself can be true: it is shown and not made again.

    Raises: DamagedFileError if the date is no date, or a name could not be that of a folder.
    """
    [called] = source["runs"]
    if not _DATE.fullmatch(str(source["date"])):
        raise DamagedFileError(f"report.html states the date {str(source['date'])[:_SHOWN]!r}, which is none")
    for name in ("name", "shown", "called"):
        parts = str(called[name]).split("/")
        if any(len(part) > _LONGEST_NAME or not part.isprintable() for part in parts):
            raise DamagedFileError(f"report.html calls its folder {str(called[name])[:_SHOWN]!r}, which no folder is")
    last = str(called["called"])
    if "/" in last or str(called["name"]) not in (last, str(called["shown"])):
        raise DamagedFileError(f"report.html calls its folder {str(called['name'])[:_SHOWN]!r} and {last[:_SHOWN]!r}")
    return last


def _check_card(evidence: Evidence) -> str:
    """Return that MODEL_CARD.md is what the records give now, or gave before the run was certified or attacked."""
    stated = read_bytes(evidence.path(names.MODEL_CARD)).decode("utf-8")
    record = read_run(evidence.folder.resolve())
    uncertified = replace(record, certificates=[], certificate_records={}, missing=list(record.missing))
    earlier = (record, uncertified, _without_attacks(record), _without_attacks(uncertified))
    cards = [model_card(each) for each in earlier]
    if stated == cards[0]:
        return "it is what the files of the run give now, word for word"
    if stated in cards:
        return "it is what the files gave before the run was certified or attacked; securesgd report writes it anew"
    raise DamagedFileError(f"MODEL_CARD.md {_difference(stated, cards[0])}: securesgd report writes it anew")


def _without_attacks(record: RunRecord) -> RunRecord:
    return replace(record, attacks={}, attacked=[], missing=list(record.missing))


def _difference(stated: str, true: str) -> str:
    """Return the first lines in which two texts differ, in words."""
    pairs = zip([*stated.splitlines(), ""], [*true.splitlines(), ""], strict=False)
    one, other = next(((one, other) for one, other in pairs if one != other), ("", ""))
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    start = max(0, same - _SHOWN // 3)
    shown = [_TAG.sub(" ", text[start : start + _SHOWN]).strip() or "nothing" for text in (one, other)]
    return f"states “{shown[0]}”, but the files of the run give “{shown[1]}”"


PAGE_CLAIMS = (
    Claim(name="report", files=(names.REPORT,), check=_check_report),
    Claim(name="model card", files=(names.MODEL_CARD,), check=_check_card),
)
