"""Numbers that text states, looked up in the rows and records that were written when they were measured."""

import csv
import json
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"(?<![\w./^-])(\d+\.\d+)(?![\w.]*\.(?:csv|json|png))")


@cache
def values(files):
    """All numbers in these files or folders of results, settings and commands among them."""
    found = set()
    for file in files or ("results",):
        path = ROOT / file
        assert path.exists(), f"{file} is linked to, but is not there"
        for part in [path] if path.is_file() else sorted(path.rglob("*")):
            if part.suffix == ".csv":
                with part.open(newline="") as table:
                    cells = [cell for row in csv.reader(table) for cell in row]
            elif part.suffix in (".jsonl", ".json"):
                lines = part.read_text().splitlines() if part.suffix == ".jsonl" else [part.read_text()]
                cells = [leaf for line in lines for leaf in _leaves(json.loads(line))]
            else:
                continue
            for cell in cells:
                found.update(float(word) for word in re.findall(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", str(cell)))
    return sorted(found)


def _leaves(record):
    if isinstance(record, dict):
        return [leaf for value in record.values() for leaf in _leaves(value)]
    if isinstance(record, list):
        return [leaf for value in record for leaf in _leaves(value)]
    return [record]


def is_there(number, files):
    digits = len(number.partition(".")[2])
    half = 0.5 * 10**-digits * (1 + 1e-9)
    return any(abs(abs(value) * scale - float(number)) <= half for value in values(files) for scale in (1, 100))
