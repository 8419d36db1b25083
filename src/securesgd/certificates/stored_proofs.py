"""Stored certificates of a run are not believed: what they state is proven again before anything is added to them.

Δ of a noisy layer is proven from its stored proof and radii by votes are computed again from their bounds; radii by
intervals are proven again by the network itself.
"""

__all__ = ["read_proven_certificates", "require_proven_rows"]

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from securesgd.certificates.intervals import is_proven, plain_outputs
from securesgd.certificates.recheck import require_true_intervals, require_true_radii
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL
from securesgd.certificates.sensitivity import known_sensitivity, published_whitened_sensitivity
from securesgd.certificates.stored_certificates import (
    CERTIFICATES,
    RECORD,
    SENSITIVITIES,
    Row,
    read_certificates,
    rows_of,
)
from securesgd.errors import DamagedFileError
from securesgd.models.noisy import NoisyNetwork
from securesgd.theory import Sensitivity

_DOWN = 1 - 1e-9  # of what another version of a library may round differently, where one radius was asked
_NEAR = 1e-4  # of the largest output: outputs that another order of sums may exchange


def read_proven_certificates(
    folder: Path,
    new_records: dict[str, dict[str, Any]],
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    again: bool,
) -> tuple[dict[str, Sensitivity], dict[str, Any], list[Row], list[str]]:
    """Return Δ by norm, and the records, rows and columns that agree with the new records, all proven again.

    Raises: InvalidInputError if the folder has certificates by other settings, DamagedFileError if they were made with
    other weights or data, state more than is proven, or the files are broken. `again` leaves those out instead.
    """
    records, rows, columns = read_certificates(folder, new_records, again)
    deltas: dict[str, Sensitivity] = {}
    for key in {**new_records, **records}:
        if key == INTERVAL:
            continue
        if not isinstance(model, NoisyNetwork):
            raise DamagedFileError(
                f"{folder / RECORD} has {key} certificates by smoothing, but the model has no noise; move it away"
            )
        deltas[key] = known_sensitivity(model, key, folder / SENSITIVITIES, again=again and key in new_records)
    for key, record in records.items():
        require_proven_rows(folder, rows_of(rows, key), record, model, inputs, targets, deltas.get(key))
    return deltas, records, rows, columns


def require_proven_rows(
    folder: Path,
    rows: list[Row],
    record: dict[str, Any],
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    delta: Sensitivity | None,
) -> None:
    """Return if rows of one record have the labels of their examples and state nothing but what the model gives.

    `delta` is the proven Δ of rows by smoothing, whose bounds are taken as they are; rows by intervals are proven anew.
    Raises: DamagedFileError if not.
    """
    _require_own_labels(folder, rows, INTERVAL if delta is None else delta.norm, targets)
    if delta is None:
        _require_proven_rows(folder, rows, record, model, inputs)
    else:
        assert isinstance(model, NoisyNetwork)
        _require_true_rows(folder, rows, record, delta, model, inputs)


def _require_own_labels(folder: Path, rows: list[Row], key: str, targets: Tensor) -> None:
    """Raise DamagedFileError unless each row is of another example of the data set, and has its label."""
    indices = [row["index"] for row in rows]
    if len(set(indices)) < len(rows) or not all(0 <= index < len(targets) for index in indices):
        raise DamagedFileError(
            f"{folder / CERTIFICATES} has {key} rows of examples that the data set does not have, or one twice"
        )
    for row in rows:
        if row["label"] != int(targets[row["index"]]):
            raise DamagedFileError(
                f"{folder / CERTIFICATES}, example {row['index']} in {key}: the label is not the example's; the row "
                "was changed"
            )


def _require_proven_rows(
    folder: Path, rows: list[Row], record: dict[str, Any], model: nn.Module, inputs: Tensor
) -> None:
    """Raise DamagedFileError unless the network's own bounds prove every radius, "yes" and prediction of the rows."""
    require_true_intervals(rows, record, str(folder / CERTIFICATES))
    stored = record["settings"]
    settings = CertifySettings(
        family=INTERVAL,
        box=None if stored["box"] is None else tuple(stored["box"]),
        box_in_units=None if stored.get("box_in_units") is None else tuple(stored["box_in_units"]),
        input_range=None if stored["input_range"] is None else tuple(stored["input_range"]),
    )
    prediction = np.array([row["prediction"] for row in rows], dtype=np.int64)
    outputs = plain_outputs(model, inputs[[row["index"] for row in rows]]).double()
    if not bool(((prediction >= 0) & (prediction < outputs.shape[1])).all()):
        raise DamagedFileError(f"{folder / CERTIFICATES} has an interval row of a class that the model does not have")
    own = outputs.gather(1, torch.from_numpy(prediction)[:, None])[:, 0]
    true = (own >= outputs.amax(1) - _NEAR * outputs.abs().amax(1)).numpy()
    down = 1.0 if stored["radius"] is None else _DOWN  # radii that were searched are proven a little beyond themselves
    for rule, bounds in (("interval", "interval"), ("linear", "best")):
        radius = np.array([row[f"radius_{rule}"] for row in rows])
        stated = radius > 0
        if rule == "linear":  # what boxes prove was proven above
            stated &= radius > np.array([row["radius_interval"] for row in rows])
        stated |= np.array([row["answer"] == "yes" for row in rows]) & (rule == "linear") & (radius == 0)
        chosen = np.flatnonzero(stated & true)
        places = [rows[i]["index"] for i in chosen]
        true[chosen] = is_proven(model, inputs[places], prediction[chosen], radius[chosen] * down, settings, bounds)
    if not true.all():
        row = rows[int(np.flatnonzero(~true)[0])]
        raise DamagedFileError(
            f"{folder / CERTIFICATES}, example {row['index']} by intervals: the network does not prove class "
            f"{row['prediction']} within {row['radius_tight']:g}; the row was changed; --again makes new certificates"
        )


def _require_true_rows(
    folder: Path,
    rows: list[Row],
    record: dict[str, Any],
    delta: Sensitivity,
    model: NoisyNetwork,
    inputs: Tensor,
) -> None:
    """Pass if a record and its rows state nothing but what Δ, the model and the rows' own bounds give.

    Raises: DamagedFileError if not.
    """
    published = published_whitened_sensitivity(model, delta)
    for words, stated, true in (
        ("Δ", record["sensitivity"]["upper"], delta.upper),
        ("the published Δ", record["published_sensitivity"], published),
    ):
        if not math.isclose(stated, true, rel_tol=1e-9):
            raise DamagedFileError(
                f"{folder / RECORD} states {words} in {delta.norm} as {stated:g}, but it is {true:g}: the file was "
                "changed; --again makes new certificates"
            )
    rounding: Any = model.rounding(inputs[[row["index"] for row in rows]]) if rows else ()
    for row, true in zip(rows, rounding, strict=True):
        if not math.isclose(row["rounding"], true, rel_tol=1e-9):
            raise DamagedFileError(
                f"{folder / CERTIFICATES}, example {row['index']} in {delta.norm}: the rounding is not the example's; "
                "the row was changed"
            )
    require_true_radii(rows, record, str(folder / CERTIFICATES))
