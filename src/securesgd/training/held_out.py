"""Accuracy on held-out examples while a run trains: twenty lines of `metrics.jsonl`, the same after an interruption.

Held-out examples are not among the training examples, so these lines say nothing about those beyond the weights, which
epsilon covers. About the held-out examples themselves they say something, and no epsilon covers that.
"""

__all__ = ["HeldOutMetrics"]

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from securesgd.errors import DamagedFileError
from securesgd.models.predict import accuracy
from securesgd.runtime.storage import parse_json, read_bytes, write_whole
from securesgd.training.result import StepReport

_LOOKS = 20  # per run
_WATCHED = 1000  # examples looked at each time


class HeldOutMetrics:
    """The file `metrics.jsonl` of a run: a line for each look at the held-out examples, and a last one about the test.

    The lines of a resumed run are those up to the checkpoint, then its own, so that the file of an interrupted run is
    that of one that was not. The file is written whole each time.
    """

    def __init__(self, path: Path, model: nn.Module, inputs: Tensor | None, targets: Tensor | None) -> None:
        self._path, self._model = path, model
        self._examples = (inputs[:_WATCHED], targets[:_WATCHED]) if inputs is not None and targets is not None else None
        self._lines: list[dict[str, Any]] | None = None

    def watch(self, on_step: Callable[[StepReport], Any] | None) -> Callable[[StepReport], Any] | None:
        """Return a step callback that adds the held-out accuracy when it is due; `on_step` if nothing is held out."""
        if self._examples is None:
            return on_step
        inputs, targets = self._examples

        def watch(report: StepReport) -> Any:
            if report.step % max(1, report.steps // _LOOKS) == 0:
                report = replace(report, held_out=accuracy(self._model, inputs, targets, draws=3))
                line = {
                    "step": report.step,
                    "epsilon": _json_number(report.epsilon),
                    "held_out_accuracy": report.held_out,
                    "held_out_images": len(targets),
                }
                self._write([*self._until(report.step - 1), line])
            return None if on_step is None else on_step(report)

        return watch

    def finish(self, *, step: int, epsilon: float, test: dict[str, Any]) -> None:
        """Write the last line: what is known on the test set of the run's weights, which are those after `step` steps.

        Raises: DamagedFileError if the file has something else in it than lines of this class.
        """
        self._write([*self._until(step), {"step": step, "epsilon": _json_number(epsilon)} | test])

    def _until(self, step: int) -> list[dict[str, Any]]:
        """Return the lines about held-out examples of the first `step` steps: later ones are of an attempt that ended.

        Without held-out examples there are none, whatever the file has in it.
        """
        if self._examples is None:
            return []
        if self._lines is None:
            self._lines = self._read()
        return [line for line in self._lines if line["step"] <= step and "held_out_accuracy" in line]

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        try:
            lines = [parse_json(line) for line in read_bytes(self._path).splitlines()]
            if not all(type(line["step"]) is int for line in lines):
                raise ValueError("a line has no number of its step")
            return lines
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{self._path} is damaged: {error}; remove it to go on without its lines") from None

    def _write(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines
        write_whole(self._path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
