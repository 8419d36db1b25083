"""What may be shown of a run while it trains, for TensorBoard: never the loss, which is about private examples."""

__all__ = ["tensorboard_logger"]

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from securesgd.errors import InvalidInputError
from securesgd.runtime.storage import require_writable
from securesgd.training.result import StepReport

_POINTS = 200  # per curve


def tensorboard_logger(folder: str | Path) -> Callable[[StepReport], None]:
    """Return an `on_step` callback of `train` that writes a run's curves into `folder`, for `tensorboard --logdir`.

    The curves are epsilon, the learning rate, the accuracy on held-out examples if there are any, and the mean time of
    a step, at two hundred steps of the run. Loss and batch size are not written: epsilon does not cover them. Epsilon
    and the learning rate are public; the accuracy is about the held-out examples, and the times are a measurement,
    which no epsilon covers either. Points of steps that a resumed run repeats replace those of the first attempt.
    Raises: InvalidInputError if the package tensorboard is not installed, or `folder` cannot be written to.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{folder} is a file; give the path of a folder for TensorBoard")
    require_writable(folder)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInputError(
            "the package tensorboard is not installed; install it with: pip install 'securesgd[tensorboard]'"
        ) from None
    writer: Any = None
    last_step, last_seconds = 0, 0.0

    def log(report: StepReport) -> None:
        nonlocal writer, last_step, last_seconds
        if writer is None:
            writer = SummaryWriter(str(folder), purge_step=report.step)
            last_step = report.step - 1
        ended = report.step == report.steps
        if report.held_out is None and not ended and report.step % max(1, report.steps // _POINTS) != 0:
            return
        curves = {
            "privacy/epsilon": report.epsilon if math.isfinite(report.epsilon) else None,
            "training/learning rate": report.learning_rate,
            "accuracy/held-out": report.held_out,
            "speed/seconds per step": (report.seconds - last_seconds) / (report.step - last_step),
        }
        for name, value in curves.items():
            if value is not None:
                writer.add_scalar(name, value, report.step)
        last_step, last_seconds = report.step, report.seconds
        writer.flush()
        if ended:
            writer.close()

    return log
