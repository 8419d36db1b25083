"""The predictions of a run for the inputs in files: where each input is, its class, and how far that is proven."""

__all__ = ["FilePrediction", "FilePredictions", "predict_files"]

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesgd.certificates.column_radii import column_radii, require_all_features, table_schema
from securesgd.new_inputs import InputPlace, Refusal, read_inputs
from securesgd.prediction import OnProgress, Prediction
from securesgd.run import Run


@dataclass(frozen=True, kw_only=True)
class FilePrediction:
    """A prediction, where its input is, and for a run on a table how far each numeric column may move in its unit."""

    place: InputPlace
    prediction: Prediction
    column_radii: dict[str, float] | None = None

    def json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        said = self.prediction
        names = ("label", "radius", "abstained", "draws", "norm", "answer", "noise")
        record = {"file": self.place.file, "row": self.place.row, "class": said.class_name}
        record |= {name: getattr(said, name) for name in names}
        return record if self.column_radii is None else record | {"column_radii": self.column_radii}


@dataclass(frozen=True, kw_only=True)
class FilePredictions:
    """The predictions for some files, in the order of the files; what could not be used; notes on tables."""

    predictions: tuple[FilePrediction, ...]
    refused: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()

    @property
    def guarantee(self) -> str:
        """What is proven, in words; empty without predictions."""
        if not self.predictions:
            return ""
        first = self.predictions[0]
        if first.column_radii is None:
            return first.prediction.guarantee
        move = "all numeric columns at once" if first.prediction.norm == "linf" else "one numeric column alone"
        return (
            f"{first.prediction.guarantee} Radii of columns are in their own units, for {move} moving by at most that "
            "much, categories unchanged."
        )

    def json(self) -> dict[str, Any]:
        """Return it as JSON holds it, with what is proven in words."""
        return {
            "guarantee": self.guarantee,
            "predictions": [row.json() for row in self.predictions],
            "refused": [refusal.json() for refusal in self.refused],
        }


def predict_files(
    run: Run, paths: Sequence[str | Path], *, on_progress: OnProgress | None = None, **changes: Any
) -> FilePredictions:
    """Return what a run says about the inputs in some files; `changes` are those of `Run.predict`, a seed among them.

    Guarantee: that of `Run.predict`, about the input as the network sees it; `Schema.column_radii` for the columns.
    Raises: InvalidInputError for settings that are not valid. A file or row that cannot be used is in `refused`.
    """
    schema = table_schema(run.record)
    if schema is not None and "input_range" in changes:
        require_all_features(changes["input_range"])
    new = read_inputs(paths, run.record)
    if not new.places:
        return FilePredictions(predictions=(), refused=new.refused, notes=new.notes)
    predictions = run.predict(new.batch, on_progress=on_progress, **changes)
    if isinstance(predictions, Prediction):
        raise AssertionError("a batch has a list of predictions")
    rows = [
        FilePrediction(
            place=place,
            prediction=said,
            column_radii=None if schema is None else column_radii(
                {"abstained": said.abstained, "radius_tight": said.radius, "norm": said.norm}, schema
            ),
        )
        for place, said in zip(new.places, predictions, strict=True)
    ]  # fmt: skip
    return FilePredictions(predictions=tuple(rows), refused=new.refused, notes=new.notes)
