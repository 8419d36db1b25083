"""What an accuracy is worth: counts by class, the accuracy of one answer, and when to warn."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securesgd.errors import InvalidInputError
from securesgd.theory.class_balance import MAX_CLASSES, ClassBalance, class_balance
from securesgd.theory.confidence import wilson_interval

CAT_AND_DOG = ("cat", "dog")
ANSWERED = st.lists(st.tuples(st.integers(0, 14), st.none() | st.integers(0, 14)), min_size=1, max_size=80)


@given(ANSWERED)
def test_recall_times_examples_adds_up_to_what_is_right(pairs):
    labels, answers = zip(*pairs, strict=True)
    balance = class_balance(labels, answers)
    right = sum(label == answer for label, answer in pairs)
    recalled = sum(r * n for r, n in zip(balance.recall, balance.examples, strict=True) if r is not None)
    assert recalled == pytest.approx(right)
    assert balance.n == len(pairs)
    assert balance.accuracy == right / len(pairs)
    assert balance.interval == wilson_interval(right, len(pairs))
    assert all((r is None) == (k not in labels) for k, r in enumerate(balance.recall))


@given(ANSWERED)
def test_one_answer_and_the_commonest_answer_are_counted_as_obviously(pairs):
    labels, answers = zip(*pairs, strict=True)
    balance = class_balance(labels, answers, 15)
    constant = max(sum(label == k for label in labels) for k in range(15)) / len(labels)
    assert balance.majority_rate == constant
    assert class_balance(labels, [balance.majority_class] * len(labels)).accuracy == constant
    given_answers = Counter(answer for answer in answers if answer is not None)
    if given_answers:
        assert given_answers[balance.top_answer] == max(given_answers.values())
        assert balance.top_share == max(given_answers.values()) / given_answers.total()
    else:
        assert balance.top_answer is balance.top_share is None
    assert balance.json()["abstained"] == len(pairs) - given_answers.total()


@given(ANSWERED)
def test_minus_one_is_an_abstention_and_json_gives_the_same_back(pairs):
    labels, answers = zip(*pairs, strict=True)
    balance = class_balance(labels, answers)
    assert class_balance(np.array(labels, float), [-1 if a is None else a for a in answers]) == balance
    assert ClassBalance.from_json(json.loads(json.dumps(balance.json()))) == balance


@given(ANSWERED, st.integers(0, 14))
def test_one_answer_is_always_warned_of_and_so_are_examples_of_one_class(pairs, answer):
    labels = [label for label, _ in pairs]
    assert class_balance(labels, [answer] * len(labels)).warning()
    assert class_balance([answer] * len(labels), labels).warning()


@given(st.lists(st.integers(0, 4), min_size=60, max_size=80))
def test_all_right_is_not_warned_of_unless_the_examples_are_too_one_sided(labels):
    labels = [*range(5), *labels]
    balance = class_balance(labels, labels)
    if balance.majority_rate < 0.9:  # the interval of 65 right ones begins at 0.944
        assert balance.warning() is None


def test_the_lines_of_a_model_that_always_says_cat():
    right, recall, warning = class_balance([0] * 160 + [1] * 40, [0] * 200).lines(CAT_AND_DOG)
    assert right == 'right: 0.800 (0.74–0.85) of 200; always answering "cat" would be right on 0.800'
    assert recall == "recall: cat: 1.000 of 160, dog: 0.000 of 40"
    assert warning == (
        'WARNING: 1.000 of the answers are "cat", though 40 of 200 examples are of other classes; 0.800 right '
        '(0.74–0.85) is not shown to be above the 0.800 of always answering "cat"'
    )


@pytest.mark.parametrize(
    ("labels", "answers", "warned"),
    [
        ([0] * 160 + [1] * 40, [0] * 158 + [1] * 42, None),
        ([0] * 100 + [1] * 100, [0] * 80 + [1] * 120, None),
        ([0] * 970 + [1] * 30, [0] * 970 + [1] * 30, None),  # 97 % of the answers, rightly
        ([0] * 970 + [1] * 30, [0] * 990 + [1] * 10, "0.990 of the answers"),
        ([0] * 8000 + [1] * 2000, [0] * 9500 + [1] * 500, "0.950 of the answers"),  # and clearly above one answer
        ([0] * 8000 + [1] * 2000, [0] * 9499 + [1] * 501, None),
        ([0] * 50 + [1] * 50, [0] * 3 + [None] * 97, "1.000 of the answers"),
        ([0] * 80 + [1] * 20, [1] * 60 + [0] * 40, "not shown to be above the 0.800"),
        ([0] * 6 + [1] * 4, [0] * 6 + [1, 1, 1, 0], "not shown to be above the 0.600"),  # 9 of 10, and too few
        ([1] * 40, [1] * 40, 'every one of the 40 examples is of class "dog"'),
        ([0] * 5 + [1] * 5, [None] * 10, "0.000 right"),
    ],
)
def test_when_there_is_a_warning(labels, answers, warned):
    warning = class_balance(labels, answers).warning(CAT_AND_DOG)
    assert warning is None if warned is None else warned in warning


def test_many_classes_are_the_mean_and_the_worst_three():
    labels = list(range(20)) * 5
    answers = [None if label in (3, 8) or (label == 11 and place < 40) else label for place, label in enumerate(labels)]
    assert class_balance(labels, answers).recall_line() == (
        "recall: mean 0.880 of 20 classes; worst: 3: 0.000 of 5, 8: 0.000 of 5, 11: 0.600 of 5"
    )


def test_classes_without_examples_are_named():
    assert class_balance([0, 0], [0, 0]).recall_line(CAT_AND_DOG) == "recall: cat: 1.000 of 2; no examples of dog"
    assert class_balance([1], [0]).recall == (None, 0.0)


def test_a_name_from_outside_is_shown_in_one_short_line():
    names = ["\x1b[31mred\n\udcff", "x" * 100]
    line = " ".join(class_balance([0, 1], [0, 1]).lines(names))
    assert "\x1b" not in line
    assert "\n" not in line
    assert "x" * 41 not in line
    line.encode()


@pytest.mark.parametrize(
    ("labels", "answers", "classes", "message"),
    [
        ([], [], None, "at least one example"),
        ([0, 1], [0], None, "2 labels and 1 predictions"),
        ([0.5], [0], None, "labels contain 0.5"),
        ([-1], [0], None, "labels contain -1"),
        ([0], [-2], None, "predictions contain -2"),
        ([float("nan")], [0], None, "labels contain nan"),
        ([1e300], [0], None, "labels contain 1e"),
        ([MAX_CLASSES], [0], None, "labels contain 100000"),
        ([[0], [1]], [0, 1], None, r"labels have shape \[2, 1\]"),
        (["cat"], [0], None, "labels are not numbers"),
        ([0, 5], [0, 5], 3, "classes is 3"),
    ],
)
def test_what_cannot_be_counted_is_refused(labels, answers, classes, message):
    with pytest.raises(InvalidInputError, match=message):
        class_balance(labels, answers, classes)


@pytest.mark.parametrize(
    "entry",
    [
        {"examples": 2, "right": 3, "answers": 3},
        {"examples": 2, "right": 2, "answers": 1},
        {"examples": 2, "right": 2, "answers": 3},
        {"examples": 0, "right": 0, "answers": 0},
        {"examples": -1, "right": 0, "answers": 0},
        {"examples": 2.5, "right": 0, "answers": 0},
        {"examples": True, "right": 0, "answers": 0},
        {"examples": 2, "right": 0},
        "cat",
    ],
)
def test_counts_that_cannot_be_are_refused(entry):
    with pytest.raises(InvalidInputError):
        ClassBalance.from_json({"classes": [entry]})


@pytest.mark.parametrize("record", [None, [], {}, 3, {"classes": {}}])
def test_a_record_of_another_shape_is_refused(record):
    with pytest.raises(InvalidInputError, match="a record with a list of classes"):
        ClassBalance.from_json(record)
