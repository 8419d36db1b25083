"""What attacks.csv and attacks.json state besides votes, computed again: radii of clean images, and warnings."""

__all__ = ["require_proven_clean_radii", "require_true_warnings"]

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from securesgd.attacks.ball import PIXELS
from securesgd.attacks.cells import Cells
from securesgd.attacks.evaluate import collect_warnings
from securesgd.attacks.measurement import INTERVAL_TOLERANCE
from securesgd.certificates.certify import certify
from securesgd.certificates.intervals import has_interval_bounds
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL
from securesgd.check.outcome import require_equal
from securesgd.errors import DamagedFileError
from securesgd.models.noisy import NoisyNetwork
from securesgd.runtime import run_folder as names
from securesgd.theory import Sensitivity
from securesgd.theory.certificates import CERTIFICATE_RULES, radii_by_rule
from securesgd.validate import Array

_PUBLISHED = "as-published"

Row = dict[str, Any]


def require_true_warnings(folder: Path, weights: str, stated: Any) -> None:
    """Pass if attacks.json has the warnings about its attacks that its probes and rows give.

    An attack that was interrupted writes them when it is resumed.
    Raises: DamagedFileError if one was removed, changed or added.
    """
    cells = Cells(folder, weights)
    for name, entry in cells.entries.items():
        if "summary" not in entry or entry["summary"]["examples"] != len(cells.cell_rows(name)):
            return
    true = [warning.json() for warning in collect_warnings(cells)]
    require_equal(names.ATTACK_RECORD, [("warnings about its attacks", stated, true)])


def require_proven_clean_radii(
    rows: Sequence[Row], cell: Row, model: nn.Module, inputs: Tensor, sensitivity: Callable[[str], Sensitivity]
) -> None:
    """Pass if the network proves the radii of images before an attack, by the seed of the cell.

    Raises: DamagedFileError naming the example whose radius is larger than what is proven.
    """
    if int(cell["measured"]["certify_draws"]) == 0:
        proven: dict[str, Array] = {}
    else:
        places = np.array([int(row["index"]) for row in rows], dtype=np.int64)
        images = inputs[places]
        if isinstance(model, NoisyNetwork):
            proven = _radii_by_votes(model, images, places, cell, sensitivity(cell["attack"]["norm"]))
        else:
            proven = _radii_by_intervals(model, images, places)
    for rule, column in (("tight", "clean_radius"), (_PUBLISHED, "clean_radius_published")):
        for i, row in enumerate(rows):
            largest = proven[rule][i] if rule in proven else None
            if row[column] != "" and (largest is None or not row[column] <= largest):
                shown = "none" if largest is None else f"at most {largest:.6g}"
                raise DamagedFileError(
                    f"{names.ATTACKS}, example {row['index']:.0f} of {row['cell']}: {column} is {row[column]:.6g}, but "
                    f"the network proves {shown}"
                )


def _radii_by_votes(
    model: NoisyNetwork, images: Tensor, places: Any, cell: Row, delta: Sensitivity
) -> dict[str, Array]:
    """Return the largest radii that the votes by the seed of the cell allow, on any processor."""
    draws, failure_prob = int(cell["measured"]["certify_draws"]), float(cell["measured"]["failure_prob"])
    settings = CertifySettings(
        norm=cell["attack"]["norm"], draws=draws, failure_prob=failure_prob, seed=2 * int(cell["attack"]["seed"])
    )
    made = certify(model, images, settings, indices=places, sensitivity=delta)
    assert made.published_sensitivity is not None
    # One vote in a thousand, and one more, may fall otherwise; it moves a bound by less than four votes' share.
    slack = 4 * (1 + draws // 1000) / draws
    unanimous = failure_prob ** (1 / draws)
    p = np.maximum(made.p_lower, np.minimum(made.p_lower + slack, unanimous))
    q = np.minimum(made.q_upper, np.maximum(made.q_upper - slack, 1 - unanimous))
    rules = {name: CERTIFICATE_RULES[name] for name in ("tight", _PUBLISHED)}
    radii = radii_by_rule(p, q, delta.upper, made.published_sensitivity, made.rounding, rules)
    return {name: values * (1 + 1e-9) for name, values in radii.items()}


def _radii_by_intervals(model: nn.Module, images: Tensor, places: Any) -> dict[str, Array]:
    """Return the radii that intervals prove, and the tolerance; nothing if a layer of the model has no bounds."""
    if not has_interval_bounds(model, tuple(images.shape[1:])):
        return {}
    in_range = bool(((images >= PIXELS[0]) & (images <= PIXELS[1])).all())
    settings = CertifySettings(family=INTERVAL, tolerance=INTERVAL_TOLERANCE, input_range=PIXELS if in_range else None)
    made = certify(model, images, settings, indices=places)
    return {"tight": made.radius["tight"] + INTERVAL_TOLERANCE}
