"""Moving code changes no number: seeded runs have the very bytes that `seeded_runs.json` recorded before the move.

The records were made with version 0.2.0, one on each kind of processor: the last digits of radii and AdLM's weights
are not the same on all. A change of the bits is a change of every committed row and needs a new version. To add a
record of this machine, made by code whose numbers are known to be right: `python -m tests.test_same_bytes`.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeded_runs import PORTABLE

HERE = Path(__file__).parent
RECORD = HERE / "seeded_runs.json"
FEW = ("learned-input", "private-first-layer", "dpsgd", "adlm")


def measured(*names):
    """The digests of these seeded runs, all of them if none is named, as the present code makes them."""
    command = [sys.executable, str(HERE / "seeded_runs.py"), *names]
    result = subprocess.run(command, env=os.environ | PORTABLE, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the record was made with the arithmetic of x86-64")
@pytest.mark.parametrize("names", [FEW, pytest.param((), marks=pytest.mark.slow)], ids=["few", "all"])
def test_seeded_runs_have_the_recorded_bytes(names):
    records = json.loads(RECORD.read_text())
    images = [digest for run in records[0].values() for name, digest in run.items() if name.startswith("images")]
    assert len(set(images)) > 5, "attacks that leave the images as they are would compare nothing"
    runs = measured(*names)
    assert runs.keys() == set(names or records[0])
    for name, digests in runs.items():
        for what, digest in digests.items():
            known = [record[name].get(what) for record in records]
            assert digest in known, f"{name}: {what}; if clipped sums changed, raise clipping.engine.ARITHMETIC"


if __name__ == "__main__":
    RECORD.write_text(json.dumps([*json.loads(RECORD.read_text()), measured()], indent=1) + "\n")
