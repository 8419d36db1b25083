"""What a finished run says about itself: model.json, and the accuracy in the last line of metrics.jsonl."""

__all__ = ["FORMAT", "RunMetrics", "read_metrics", "read_model_record"]

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime import run_folder as names
from securesgd.runtime.storage import file_digest, parse_json, read_bytes, read_json
from securesgd.theory.class_balance import ClassBalance

FORMAT = 1
"""Of model.json."""
_ROUNDING = 1e-6  # accuracies are computed in single precision


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """What was measured on the test set when training ended.

    Raises: InvalidInputError if the balance is of another accuracy.
    """

    test_accuracy: float | None
    """None if there was no test set."""
    test_images: int
    test_balance: ClassBalance | None
    """None without a test set that has a class for each example, and in runs of earlier versions."""

    def __post_init__(self) -> None:
        if self.test_balance is None:
            return
        stated, counted = self.test_accuracy, self.test_balance.accuracy
        if stated is None or not abs(stated - counted) <= _ROUNDING or self.test_images != self.test_balance.n:
            raise InvalidInputError(
                f"test_accuracy is {stated} of {self.test_images}; its classes give {counted} of {self.test_balance.n}"
            )

    @classmethod
    def from_json(cls, record: Any) -> "RunMetrics":
        """Return a line of metrics.jsonl. Raises: InvalidInputError if it is something else."""
        try:
            accuracy, balance = record["test_accuracy"], record.get("test_balance")
            return cls(
                test_accuracy=None if accuracy is None else float(accuracy),
                test_images=int(record.get("test_images", 0)),
                test_balance=None if balance is None else ClassBalance.from_json(balance),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidInputError(f"{type(error).__name__} {error}") from None


def read_metrics(folder: Path) -> RunMetrics:
    """Return the last line of metrics.jsonl. Raises: DamagedFileError if it is not what training writes."""
    path = folder / names.METRICS
    try:
        return RunMetrics.from_json(parse_json(read_bytes(path).splitlines()[-1]))
    except (ValueError, IndexError, InvalidInputError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


def read_model_record(folder: Path) -> dict[str, Any]:
    """Return the content of model.json.

    Raises: DamagedFileError if it is not one, of another format, or of a run with another config.toml.
    """
    path = folder / names.MODEL
    record = read_json(path)
    try:
        version = record["format"]
        [int(size) for size in record["input_shape"]], int(record["classes"]), list(record["class_names"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None
    if version != FORMAT:
        raise DamagedFileError(f"{path} has format {version!r}; this version reads {FORMAT}")
    if record.get("config_sha256") not in (None, file_digest(folder / names.CONFIG)):
        raise DamagedFileError(f"{folder / names.CONFIG} is not the one this run was trained with; put that back")
    return record
