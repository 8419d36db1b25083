"""Certify the test examples of a run by intervals, and store the certificates beside those by smoothing."""

__all__ = ["certify_run_by_intervals"]

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from securesgd.certificates.intervals import BLOCK, certify_by_intervals
from securesgd.certificates.parts import in_parts
from securesgd.certificates.recheck import record_digest
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL
from securesgd.certificates.stored_certificates import (
    Row,
    certificate_rows,
    new_record,
    rows_of,
    stated_intervals,
    write_certificates,
)
from securesgd.certificates.stored_proofs import read_proven_certificates
from securesgd.runtime.processes import Processes
from securesgd.runtime.run_folder import locked_folder


def certify_run_by_intervals(
    folder: Path,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    settings: CertifySettings,
    wanted: NDArray[np.int64],
    *,
    again: bool,
    on_progress: Callable[[float, int], None] | None,
) -> tuple[dict[str, dict[str, Any]], list[Row]]:
    """Return the record `interval` and all rows of the folder, after certifying the wanted examples that have no row.

    Guarantee, Raises: those of `certify_run`.
    """
    processes = Processes()
    with ExitStack() as stack:
        processes.on_first(lambda: stack.enter_context(locked_folder(folder)))
        record = new_record(settings, model, inputs, targets)
        _, records, rows, columns = processes.on_first(
            lambda: read_proven_certificates(folder, {INTERVAL: record}, model, inputs, targets, again)
        )
        existing = {row["index"] for row in rows_of(rows, INTERVAL)}
        todo = np.array([i for i in wanted if i not in existing], dtype=np.int64)

        def save() -> dict[str, dict[str, Any]]:
            records[INTERVAL] = stated_intervals(record, model, rows_of(rows, INTERVAL))
            write_certificates(folder, rows, records, columns)
            return {INTERVAL: records[INTERVAL]}

        def certify_part(part: NDArray[np.int64], report: Callable[[float], None]) -> None:
            certificates = certify_by_intervals(
                model, inputs[part], settings, part, lambda done: report(done * processes.count / len(part))
            )
            rows.extend(certificate_rows(certificates, targets, record_digest(record)))

        in_parts(todo, processes, certify_part, save, on_progress, block=BLOCK)
        return processes.on_first(save), rows
