"""What a served run says about itself and about inputs, as JSON objects with a sentence for people."""

__all__ = ["Question", "ServedRun", "radius_in_words"]

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from securesgd.certificates.record import CertifySettings
from securesgd.certificates.rules import INTERVAL
from securesgd.data.schema import Schema
from securesgd.errors import InvalidInputError
from securesgd.run import Prediction, Run
from securesgd.runtime.run_folder import SECRET
from securesgd.serve.attack import AttackedInput, attack_input
from securesgd.serve.inputs import InputReader, ReadInput
from securesgd.theory.rounding import round_down

Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """The body of a request, and what is asked about the input in it."""

    verb: Literal["predict", "attack"]
    body: bytes
    content_type: str
    invert: bool = False
    picture: bool = False
    """Whether the answer has the input as the model saw it, as a PNG."""


class ServedRun:
    """A run that answers questions, with fresh secret noise for each batch of them.

    Guarantee: that of `Run.predict` for every answer.
    Raises: InvalidInputError if the folder holds the key of an unfinished run, or the draws cannot prove anything.
    """

    def __init__(self, run: Run, *, draws: int = 1_000) -> None:
        require_no_secret(run.path)
        self.run, self.draws = run, draws
        self.reader = InputReader(run.record, run.input_range)
        settings = CertifySettings(draws=draws).for_model(run.model)
        self.family = str(settings.family)
        self.norm = "linf" if self.family == INTERVAL else run.config.robustness.norm
        self.failure_prob = 0.0 if self.family == INTERVAL else settings.failure_prob
        self.class_names = _all_names(run.record["class_names"], int(run.record["classes"]))
        self._statement = run.privacy
        # The first prediction proves the sensitivity of the layer, which may take half a minute, and tries the draws.
        run.predict(torch.full(self.reader.shape, (run.input_range or (0.0,))[0]), draws=draws)

    def description(self) -> Answer:
        """Return what a client needs to know about the run; nothing in it names a file or a place."""
        schema = self.reader.schema
        return {
            "kind": self.reader.kind,
            "class_names": self.class_names,
            "input_shape": list(self.reader.shape),
            "input_range": None if self.run.input_range is None else list(self.run.input_range),
            "columns": None if schema is None else [c for c in schema.json()["columns"] if "ignore" not in c],
            "target": None if schema is None else schema.target,
            "method": str(self.run.record.get("method", "")),
            "statement": {
                "guaranteed": self._statement.guaranteed,
                "in_short": self._statement.in_short,
                "in_words": self._statement.in_words,
            },
            "family": self.family,
            "norm": self.norm,
            "draws": 0 if self.family == INTERVAL else self.draws,
            "failure_prob": self.failure_prob,
        }

    def answers(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        """Return for each question its answer, or the InvalidInputError that says what is wrong with it.

        All inputs to be predicted are certified together: they were all given before the noise was drawn.
        """
        inputs = [self._read(question) for question in questions]
        results: list[Answer | Exception] = [x if isinstance(x, Exception) else {} for x in inputs]
        together = [
            (place, x) for place, (question, x) in enumerate(zip(questions, inputs, strict=True))
            if question.verb == "predict" and isinstance(x, ReadInput)
        ]  # fmt: skip
        if together:
            predictions = self._predict([x.values for _, x in together])
            for (place, read), said in zip(together, predictions, strict=True):
                picture = questions[place].picture
                results[place] = said if isinstance(said, Exception) else self._prediction(said, read, picture)
        for place, (question, x) in enumerate(zip(questions, inputs, strict=True)):
            if question.verb == "attack" and isinstance(x, ReadInput):
                try:
                    results[place] = self._attack(x)
                except InvalidInputError as error:
                    results[place] = error
        return results

    def _read(self, question: Question) -> ReadInput | InvalidInputError:
        try:
            return self.reader.read(question.body, question.content_type, invert=question.invert)
        except InvalidInputError as error:
            return error

    def _predict(self, inputs: Sequence[Tensor]) -> Sequence[Prediction | InvalidInputError]:
        """Return the prediction of each input; one that is refused spoils none of the others."""
        try:
            return _as_list(self.run.predict(torch.stack(list(inputs)), draws=self.draws))
        except InvalidInputError as error:
            return [error] if len(inputs) == 1 else [self._predict([x])[0] for x in inputs]

    def _prediction(self, prediction: Prediction, x: ReadInput, with_picture: bool) -> Answer:
        schema = self.reader.schema
        return {
            "class": self._name(prediction.label),
            "label": prediction.label,
            "abstained": prediction.abstained,
            "radius": prediction.radius,
            "norm": self.norm,
            "family": self.family,
            "draws": prediction.draws,
            "failure_prob": self.failure_prob,
            "votes": _votes(prediction, self.class_names),
            "column_radii": None if schema is None else schema.column_radii(prediction.radius, self.norm),
            "resized_from": None if x.size is None or x.size[::-1] == self.reader.shape[-2:] else list(x.size),
            "picture": self._picture(x.values) if with_picture else None,
            "in_words": radius_in_words(prediction, self.reader.kind, self.norm, self.failure_prob, schema),
        }

    def _attack(self, x: ReadInput) -> Answer:
        (before,) = _as_list(self.run.predict(x.values[None], draws=self.draws))
        inside, outside = attack_input(
            self.run,
            x.values.float(),
            before,
            norm=self.norm,
            family=self.family,
            schema=self.reader.schema,
            draws=self.draws,
        )
        return {
            "before": self._prediction(before, x, True),
            "inside": None if inside is None else self._attacked(inside),
            "outside": self._attacked(outside),
        }

    def _attacked(self, found: AttackedInput) -> Answer:
        return {
            "budget": found.budget,
            "times_radius": found.times_radius,
            "changed": found.changed,
            "class": self._name(found.prediction.label),
            "abstained": found.prediction.abstained,
            "votes": _votes(found.prediction, self.class_names),
            "picture": self._picture(found.values),
            "row": self._row(found.values),
        }

    def _name(self, label: int | None) -> str | None:
        return None if label is None else self.class_names[label]

    def _picture(self, values: Tensor) -> str | None:
        """Return an image as a PNG in a data URI, rounded to whole grey levels; None if the input is no image."""
        if self.reader.kind != "image":
            return None
        pixels = (values.clamp(0, 1) * 255).round().to(torch.uint8).numpy().transpose(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")

    def _row(self, values: Tensor) -> dict[str, float | str] | None:
        """Return the row of a table that features stand for; None if the run has no table."""
        if self.reader.schema is None:
            return None
        row: dict[str, float | str] = {}
        numbers, start = values.double().numpy(), 0
        for column in self.reader.schema.used_columns:
            own = numbers[start : start + len(column.features)]
            start += len(column.features)
            if column.minimum is not None and column.maximum is not None:
                row[column.name] = column.minimum + float(own[0]) * (column.maximum - column.minimum)
            else:
                row[column.name] = column.categories[int(np.argmax(own))]
        return row


def require_no_secret(folder: Path) -> None:
    """Raise InvalidInputError if the folder holds the key of a run: it is not finished, and not to be shown."""
    if (folder / SECRET).exists():
        raise InvalidInputError(
            f"{folder} holds {SECRET}, the key of an unfinished run; "
            f"end it with `securesgd train --resume --out {folder}`"
        )


def radius_in_words(
    prediction: Prediction, kind: str, norm: str, failure_prob: float, schema: Schema | None = None
) -> str:
    """Return what was proven about a prediction as a sentence; radii are rounded down. Of a table `schema` is needed.

    Guarantee: what is said of the columns of a table holds for the column that `Schema.column_radii` gives least.
    """
    if prediction.abstained:
        return "The model does not say: the noisy votes are too close for a proof of any class."
    size = prediction.radius if schema is None else _column_share(prediction.radius, norm, schema)
    if size == 0:
        return "The model answers, but nothing is proven about inputs near this one."
    change = _number_change(size, kind, norm) if schema is None else _column_change(size, norm)
    sure = f"wrong with probability at most {failure_prob:g}" if failure_prob else "for certain"
    return f"Proven: {change}, and the answer stays the same; {sure}."


def _number_change(radius: float, kind: str, norm: str) -> str:
    what = "pixel" if kind == "image" else "number"
    size = f"less than {round_down(radius, digits=3):g}"
    levels = f" ({round_down(255 * radius, digits=3):g} of 255 levels)" if kind == "image" else ""
    return {
        "linf": f"every {what} may change by {size}{levels}, all of them at once and in any direction",
        "l2": f"the {what}s may change by {size} together (root of the sum of squares)",
        "l1": f"the {what}s may change by {size} together (sum of sizes)",
    }[norm]


def _column_share(radius: float, norm: str, schema: Schema) -> float:
    """Return the share of its range that every numeric column may move by, whatever scaling rounds."""
    widths = {c.name: c.maximum - c.minimum for c in schema.columns if c.minimum is not None and c.maximum is not None}
    return min((r / widths[name] for name, r in schema.column_radii(radius, norm).items()), default=0.0) * (1 - 1e-9)


def _column_change(share: float, norm: str) -> str:
    size = f"less than {round_down(100 * share, digits=3):g} % of its range"
    if norm == "linf":
        return f"every numeric column may change by {size}, all of them at once, categories staying as they are"
    return f"any one numeric column may change by {size}, the others staying as they are"


def _votes(prediction: Prediction, class_names: Sequence[str]) -> list[Answer]:
    return [
        {"class": name, "votes": votes}
        for name, votes in zip(class_names, prediction.votes, strict=False)
    ]  # fmt: skip


def _all_names(names: Sequence[Any], count: int) -> list[str]:
    """Return a name for each class: its number where the run has no name."""
    return [str(names[place]) if place < len(names) else str(place) for place in range(count)]


def _as_list(predictions: "Prediction | list[Prediction]") -> list[Prediction]:
    return predictions if isinstance(predictions, list) else [predictions]
