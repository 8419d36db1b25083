"""The checks that need nothing but the files of a run: chain, digests, arithmetic and recounts. No torch.

`CLAIMS` is the table of them; one row adds one. A file that no row names is said to be not checked.
"""

__all__ = ["CLAIMS", "check_records", "unbelieved_tiles", "unchecked_files"]

from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from pathlib import Path

from securesgd.check.audit_claim import AUDIT_CLAIM
from securesgd.check.evidence import Evidence
from securesgd.check.outcome import FAIL, NOT_CHECKED, Finding, examine
from securesgd.check.result_claims import RESULT_CLAIMS
from securesgd.check.training_claims import TRAINING_CLAIMS
from securesgd.errors import printable
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import is_leftover

CLAIMS = (*TRAINING_CLAIMS, *RESULT_CLAIMS, AUDIT_CLAIM)
"""What is checked from files alone, in the order of the lines."""

_NO_CLAIMS = {
    names.ENVIRONMENT: "it says on which machine and by which versions; nothing rests on it",
    names.LOCAL: "it says where data are on one machine; nothing rests on it",
    names.SECRET: "it is for an unfinished training; do not hand it on",
    names.CHECKPOINT: "it is of an unfinished training",
    "*.png": "a picture; the numbers it is drawn from are checked",
    f"{names.ATTACK_IMAGES}/*": "attacked images; their votes are measured again if the test data are there",
}


def check_records(folder: Path) -> list[Finding]:
    """Return the outcome of each claim of `CLAIMS` that the folder makes, whatever its files hold. Only reads.

    Raises: InvalidInputError if it is not a run folder.
    """
    evidence = Evidence(folder)
    claimed = [claim for claim in CLAIMS if claim in TRAINING_CLAIMS or any(map(evidence.has, claim.files))]
    return [examine(claim, evidence, folder) for claim in claimed]


def unbelieved_tiles(findings: Sequence[Finding]) -> dict[str, str]:
    """Return, by number at the top of a report, why it is not believed: the first claim behind it that fails."""
    tiles = {claim.name: claim.tiles for claim in CLAIMS}
    reasons: dict[str, str] = {}
    for finding in findings:
        if finding.outcome == FAIL:
            for tile in tiles.get(finding.claim, ()):
                reasons.setdefault(tile, f"{finding.claim}: {finding.words}")
    return reasons


def unchecked_files(folder: Path, checked: Collection[str]) -> list[Finding]:
    """Return a line for each file of a folder that is not among the `checked`, and why."""
    findings = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_dir() and not path.is_symlink()) or name in checked or is_leftover(path):
            continue
        words = next((words for pattern, words in _NO_CLAIMS.items() if fnmatch(name, pattern)), "unknown here")
        findings.append(Finding(claim=printable(name), outcome=NOT_CHECKED, words=words))
    return findings
