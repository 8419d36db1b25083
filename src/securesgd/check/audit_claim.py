"""The claim of audit.json: that its counts prove what it says, about the claim of this very ledger. No torch."""

__all__ = ["AUDIT_CLAIM"]

from dataclasses import asdict
from typing import Any

from securesgd.audit.bounds import BOXES, box_bounds, largest_bound
from securesgd.audit.claim import claim_of_ledger
from securesgd.audit.record import AUDIT, audit_in_words, read_audit
from securesgd.check.evidence import Evidence
from securesgd.check.outcome import Claim, NotCheckable, require_equal
from securesgd.errors import DamagedFileError


def _check_audit(evidence: Evidence) -> str:
    """Return what the audit found; its bounds must be those of its counts, and must not contradict the ledger."""
    record = read_audit(evidence.folder)
    if record is None:
        raise NotCheckable(f"{AUDIT} is missing")
    claim = claim_of_ledger(evidence.ledger)
    failure_prob = 1 - record["confidence"]
    kinds = record["canaries"]
    expected = {"white_box": kinds["weights"] + kinds["biases"], "black_box": kinds["data"]}
    pairs: list[tuple[str, Any, Any]] = [
        ("the claim", record["claim"], asdict(claim)),
        ("a sabotage", record["sabotage"], None),
        ("that canaries were inserted:", record["inserted"], True),
    ]
    if not 0 < failure_prob < 0.5:
        raise DamagedFileError(f"{AUDIT} states the confidence {record['confidence']}; valid: 0.5 to 1")
    boxes = {}
    for box in BOXES:
        boxes[box] = box_bounds(box, expected[box], record[box]["right"], claim, failure_prob)
        pairs.append((f"in {box}", record[box], boxes[box]))
    largest = largest_bound(boxes)
    pairs += [
        ("the bound", record["epsilon_lower_bound"], largest),
        ("holds", record["holds"], largest <= claim.epsilon),
    ]
    require_equal(AUDIT, pairs, rel_tol=1e-6)
    if not record["holds"]:
        raise DamagedFileError(audit_in_words(record))
    return f"its bounds are those of its counts. {audit_in_words(record)}"


AUDIT_CLAIM = Claim(name="audit", files=(AUDIT,), check=_check_audit, tiles=("privacy",))
