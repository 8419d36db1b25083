"""What an accuracy is worth: beside it the accuracy of always giving one answer, and how much of each class is right.

A model that always answers the commonest class is right on its share of the examples, is never moved by an attack, and
every one of its answers can be proven. An accuracy alone, clean, certified or under attack, does not show it.
"""

__all__ = ["WARNING", "ClassBalance", "class_balance", "class_name"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from securesgd.errors import InvalidInputError, printable
from securesgd.theory.confidence import wilson_interval
from securesgd.validate import validate_count

WARNING = "WARNING: "
"""How a line of `ClassBalance.lines` begins that is to be printed loudly."""
MAX_CLASSES = 100_000
NEARLY_ALL = 0.95
"""A class with this share of the answers takes nearly all of them."""
_LISTED, _WORST = 10, 3  # classes whose recall is listed one by one; of more than that, how many of the worst
_LONGEST_NAME = 40


@dataclass(frozen=True, kw_only=True)
class ClassBalance:
    """Answers to some examples, counted by class; everything else is computed from the three counts.

    Raises: InvalidInputError unless the counts are whole numbers that fit together, of at least one example.
    """

    examples: tuple[int, ...]
    """By class: examples with this label."""
    right: tuple[int, ...]
    """By class: those of them whose answer is this class."""
    answers: tuple[int, ...]
    """By class: examples, whatever their label, whose answer is this class. An abstention is no answer."""

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in ("examples", "right", "answers")}
        for name, counts in columns.items():
            for count in counts:
                validate_count(name, count, 0)
        if len({len(counts) for counts in columns.values()}) > 1 or len(self.examples) > MAX_CLASSES:
            lengths = ", ".join(str(len(counts)) for counts in columns.values())
            raise InvalidInputError(
                f"examples, right and answers are of {lengths} classes; valid: one number, at most {MAX_CLASSES:,}"
            )
        if any(ok > min(n, answers) for n, ok, answers in zip(*columns.values(), strict=True)):
            raise InvalidInputError("right is above examples or answers; valid: at most as many as either, by class")
        if self.n < 1 or sum(self.answers) > self.n:
            raise InvalidInputError(
                f"examples add up to {self.n} and answers to {sum(self.answers)}; valid: at least one example, and at "
                "most one answer to each"
            )

    @cached_property
    def n(self) -> int:
        """The number of examples."""
        return sum(self.examples)

    @property
    def accuracy(self) -> float:
        """The share of the examples whose answer is right; an abstention is not."""
        return sum(self.right) / self.n

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the accuracy."""
        lower, upper = wilson_interval(sum(self.right), self.n)
        return float(lower), float(upper)

    @cached_property
    def majority_class(self) -> int:
        """The commonest label, the first of several."""
        return int(np.argmax(self.examples))

    @property
    def majority_rate(self) -> float:
        """The share of the commonest label: the accuracy of always answering it."""
        return self.examples[self.majority_class] / self.n

    @property
    def recall(self) -> tuple[float | None, ...]:
        """By class: the share of its examples that are right; None for a class without examples."""
        return tuple(ok / n if n else None for ok, n in zip(self.right, self.examples, strict=True))

    @property
    def top_answer(self) -> int | None:
        """The class that is answered most often, the first of several; None if everything is an abstention."""
        return int(np.argmax(self.answers)) if any(self.answers) else None

    @property
    def top_share(self) -> float | None:
        """The share of `top_answer` among the answers; None if there is no answer."""
        return max(self.answers) / sum(self.answers) if any(self.answers) else None

    def json(self, class_names: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return it as JSON holds it, the warning in words among it; `from_json` reads it."""
        columns = zip(self.examples, self.right, self.recall, self.answers, strict=True)
        return {
            "examples": self.n,
            "accuracy": {"share": self.accuracy, "lower": self.interval[0], "upper": self.interval[1]},
            "majority": {"class": self.majority_class, "share": self.majority_rate},
            "top_answer": {"class": self.top_answer, "share": self.top_share},
            "abstained": self.n - sum(self.answers),
            "classes": [{"examples": n, "right": ok, "recall": r, "answers": a} for n, ok, r, a in columns],
            "warning": self.warning(class_names),
        }

    @classmethod
    def from_json(cls, record: Any) -> "ClassBalance":
        """Return what `json` wrote, from its counts by class. Raises: InvalidInputError if it is something else."""
        classes = record.get("classes") if isinstance(record, Mapping) else None
        if not isinstance(classes, list) or not all(isinstance(entry, Mapping) for entry in classes):
            raise InvalidInputError(f"the balance is {str(record)[:40]!r}; valid: a record with a list of classes")
        return cls(**{name: tuple(x.get(name) for x in classes) for name in ("examples", "right", "answers")})

    def lines(self, class_names: Sequence[Any] | None = None) -> list[str]:
        """Return plain lines for a terminal: accuracy and that of one answer, recall, and the warning if there is one.

        Classes go by number if they have no names.
        """
        lower, upper = self.interval
        right = (
            f"right: {self.accuracy:.3f} ({lower:.2f}–{upper:.2f}) of {self.n:,}; always answering "
            f"{_quoted(self.majority_class, class_names)} would be right on {self.majority_rate:.3f}"
        )
        warning = self.warning(class_names)
        return [right, self.recall_line(class_names), *([WARNING + warning] if warning else ())]

    def recall_line(self, class_names: Sequence[Any] | None = None) -> str:
        """Return the recall of each class in one line; of more than ten classes the mean and the worst three."""
        recall = {number: share for number, share in enumerate(self.recall) if share is not None}
        classes = max(len(self.examples), len(class_names or ()))

        def listed(numbers: Sequence[int]) -> str:
            return ", ".join(f"{class_name(k, class_names)}: {recall[k]:.3f} of {self.examples[k]:,}" for k in numbers)

        if classes > _LISTED:
            worst = sorted(recall, key=lambda number: recall[number])[:_WORST]
            return f"recall: mean {np.mean(list(recall.values())):.3f} of {len(recall)} classes; worst: {listed(worst)}"
        absent = [class_name(number, class_names) for number in range(classes) if number not in recall]
        return f"recall: {listed(list(recall))}" + (f"; no examples of {', '.join(absent)}" if absent else "")

    def warning(self, class_names: Sequence[Any] | None = None) -> str | None:
        """Return why the accuracy says little, in one line; None if nothing is the matter.

        The examples are all of one class; or nearly all answers are one class and most examples of the others are
        missed; or the 95 % interval of the accuracy reaches the share of the commonest label.
        """
        common = _quoted(self.majority_class, class_names)
        if self.examples[self.majority_class] == self.n:
            return f"every one of the {self.n:,} examples is of class {common}: this says nothing about other classes"
        reasons, top = [], self.top_answer
        if top is not None and self.top_share is not None and self.top_share >= NEARLY_ALL:
            others = self.n - self.examples[top]
            if 2 * (sum(self.right) - self.right[top]) < others:
                reasons.append(
                    f"{self.top_share:.3f} of the answers are {_quoted(top, class_names)}, though {others:,} of "
                    f"{self.n:,} examples are of other classes"
                )
        lower, upper = self.interval
        if lower <= self.majority_rate:
            reasons.append(
                f"{self.accuracy:.3f} right ({lower:.2f}–{upper:.2f}) is not shown to be above the "
                f"{self.majority_rate:.3f} of always answering {common}"
            )
        return "; ".join(reasons) or None


def class_balance(labels: Any, predictions: Any, classes: int | None = None) -> ClassBalance:
    """Return the balance of some answers; a prediction of None or -1 is an abstention.

    `classes` is their number; as many as there are labels and answers if not given.
    Raises: InvalidInputError if labels or predictions are not whole numbers below `classes`, or not as many.
    """
    true = _class_numbers("labels", labels)
    given = _class_numbers("predictions", [-1 if answer is None else answer for answer in predictions], lowest=-1)
    if len(true) != len(given):
        raise InvalidInputError(f"there are {len(true)} labels and {len(given)} predictions; valid: one for each")
    most = 1 + int(max(true.max(initial=0), given.max(initial=0)))
    count = most if classes is None else validate_count("classes", classes, most, MAX_CLASSES)

    def counted(numbers: Any) -> tuple[int, ...]:
        return tuple(np.bincount(numbers, minlength=count).tolist())

    return ClassBalance(examples=counted(true), right=counted(true[true == given]), answers=counted(given[given >= 0]))


def _class_numbers(name: str, values: Any, lowest: int = 0) -> np.ndarray:
    """Return class numbers as an array. Raises: InvalidInputError if one is not a whole number, or too large."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} are not numbers ({error}); valid: whole numbers") from None
    fits = (numbers >= lowest) & (numbers < MAX_CLASSES) & (numbers == np.floor(numbers))
    if numbers.ndim != 1 or not fits.all():
        odd = f"have shape {list(numbers.shape)}" if numbers.ndim != 1 else f"contain {numbers[~fits][0]:g}"
        raise InvalidInputError(f"{name} {odd}; valid: one whole number each, {lowest} to {MAX_CLASSES - 1:,}")
    return numbers.astype(np.int64)


def class_name(number: int, class_names: Sequence[Any] | None) -> str:
    """Return the name of a class as it can be printed, or its number."""
    if class_names is None or number >= len(class_names):
        return str(number)
    name = printable(str(class_names[number]))
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _quoted(number: int, class_names: Sequence[Any] | None) -> str:
    return f'"{class_name(number, class_names)}"'
