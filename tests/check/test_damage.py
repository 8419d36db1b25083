"""Random bytes flipped and files cut short: no traceback, nothing written, and no changed claim passes.

A check that passes although a file changed must have left every claim as it was. What is no claim is listed here.
"""

import json
import random
import re
import shutil

import pytest

from securesgd.check.folder import check_files
from securesgd.run_check import check_run
from securesgd.runtime.tables import read_rows

FAST, MANY, PARTS = 100, 2_000, 20
NO_CLAIM = {
    "sensitivity.json": {"seconds", "direction", "proof"},  # the proof is carried out again; any that proves Δ will do
    "attacks.json": {"seconds", "flat", "passes"},
    "model.json": {"seed"},  # of a split that has its digest
}
BY_NETWORK = {
    "sensitivity.json": {"weights"},
    "attacks.json": {"weights", "data", "suspicions"},
    "certificates.json": {"input_path"},
    "model.json": {"structure_sha256", "test_sha256", "input_shape", "input_range", "split", "name"},
}
"""What files alone do not contradict."""


def without(value, keys):
    if isinstance(value, dict):
        return {name: without(item, keys) for name, item in value.items() if name not in keys}
    return [without(item, keys) for item in value] if isinstance(value, list) else value


def rounded(value, digits=8):
    """Numbers to some digits: a claim is not about the last bits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: rounded(item, digits) for name, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list) else value


def claims(path, by_network):
    """What a file claims; two contents with equal claims are the same to a reader."""
    name = path.name
    if path.suffix == ".png" or name == "environment.json":
        return None
    if path.suffix == ".csv":
        return rounded(read_rows(path))
    if path.suffix == ".jsonl" and name != "ledger.jsonl":
        return rounded([json.loads(line) for line in path.read_text().splitlines()], 5)  # of single precision
    if name == "report.html":
        return re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*|UTC|made [-\d: ]*", "", path.read_text())
    if path.suffix == ".json":
        keys = NO_CLAIM.get(name, set()) | (set() if by_network else BY_NETWORK.get(name, set()))
        content = without(json.loads(path.read_text()), keys)
        if name.startswith("falsified"):  # how much was searched is not searched again
            found = {rule: (x["violations"], x["broken"], x["in_words"]) for rule, x in content["rules"].items()}
            return content["sound"], found
        if name == "redistribution.json" and not by_network:
            del content["r"], content["shape"]
        return rounded(content, 5 if name == "redistribution.json" else 8)  # r is compared to six digits
    return path.read_bytes()


def damaged(rng, content):
    if rng.random() < 0.25:
        return content[: rng.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 4))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def ok_claims(findings):
    return {finding.claim for finding in findings if finding.outcome == "ok"}


def harm(folder, seed, count, by_network=False):
    """Damage one file after the other; return how many changes were reported, and how many altered no claim."""
    rng = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    before = {path: (path.read_bytes(), claims(path, by_network)) for path in files}
    reported = silent = 0
    fine = ok_claims(check_run(folder, examples=None).findings if by_network else check_files(folder))
    for number in range(count):
        path = files[rng.randrange(len(files))]
        changed = damaged(rng, before[path][0])
        path.write_bytes(changed)
        result = check_files(folder)
        if by_network and not any(finding.outcome == "FAIL" for finding in result):
            result = list(check_run(folder, examples=None).findings)
        assert path.read_bytes() == changed, "a check wrote to a file"
        assert sorted(p for p in folder.rglob("*") if p.is_file()) == files, "a check wrote a file"
        if any(finding.outcome == "FAIL" for finding in result) or not fine <= ok_claims(result):
            reported += 1
        else:
            assert claims(path, by_network) == before[path][1], (number, path.name, "a changed claim passes")
            silent += 1
        path.write_bytes(before[path][0])
    return reported, silent


def test_a_hundred_damages(copied_run):
    reported, silent = harm(copied_run, seed=1, count=FAST)
    assert reported > FAST / 2
    assert reported + silent == FAST


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_two_thousand_damages_with_the_network(part, tiny_run, tmp_path):
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    reported, silent = harm(folder, seed=100 + part, count=MANY // PARTS, by_network=True)
    print(f"{reported} reported, {silent} altered no claim")
    assert reported > MANY / PARTS / 2
