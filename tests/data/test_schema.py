"""The schema of a table: what it accepts, what it encodes, and how far a column may move within a proven radius."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from securesgd.data.columns import Column
from securesgd.data.schema import Schema
from securesgd.errors import InvalidInputError

FACTS = {
    "target": "diagnosis",
    "classes": ["benign", "malignant"],
    "columns": {
        "age": {"minimum": 0, "maximum": 120},
        "sex": {"categories": ["f", "m"]},
        "id": {"ignore": True},
        "bmi": {"minimum": 10.5, "maximum": 60.5},
    },
}
HEADER = ["id", "age", "sex", "bmi", "diagnosis"]
SCHEMA = Schema.from_tables(FACTS, header=HEADER)


def numeric(minimum, maximum):
    return Schema(target="y", classes=("a", "b"), columns=(Column(name="x", minimum=minimum, maximum=maximum),))


def test_features_and_their_values():
    assert SCHEMA.features == ("age", "sex=f", "sex=m", "bmi")
    columns = {"age": ["30", " 150", "-1"], "sex": ["m", "f ", "f"], "bmi": np.array([10.5, 35.5, 60.5]), "id": "abc"}
    encoded = SCHEMA.encode(columns)
    assert encoded.dtype == np.float32
    assert encoded.tolist() == [[0.25, 0, 1, 0], [1, 1, 0, 0.5], [0, 1, 0, 1]]
    rows = SCHEMA.encode_rows(columns | {"diagnosis": ["malignant", "benign", "benign"]})
    assert rows.targets.tolist() == [1, 0, 0]
    assert rows.clipped == {"age": 2, "bmi": 0}


def test_numbers_truth_values_and_whole_categories_of_arrays():
    schema = Schema.from_tables(
        {
            "target": "y",
            "classes": [0, 1],
            "columns": {"flag": {"categories": ["false", "true"]}, "on": {"minimum": 0, "maximum": 1}},
        }
    )
    truth = np.array([True, False])
    rows = schema.encode_rows({"flag": truth, "on": truth, "y": np.array([1, 0])})
    assert rows.inputs.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert rows.targets.tolist() == [1, 0]
    assert schema.encode_rows({"flag": truth, "on": truth, "y": np.array([1.0, 0.0])}).bad  # 1.0 is not the text 1


def test_all_bad_cells_are_counted_and_the_first_are_named():
    columns = {
        "age": ["x", "", "nan", "inf", "1_0", "9" * 400, "٣", None, "1e999", "0x10", "1,5", "12"],
        "sex": ["f"] * 10 + ["F", "d"],
        "bmi": [20.0] * 11 + [math.nan],
    }
    columns["bmi"] = np.array(columns["bmi"])
    with pytest.raises(InvalidInputError) as caught:
        SCHEMA.encode(columns)
    message = str(caught.value)
    assert "14 cells cannot be used" in message
    assert message.startswith("14")
    assert "row 1 age 'x' (valid: a finite number" in message
    assert "row 2 age is empty" in message
    assert "and 4 more" in message
    assert "\n" not in message
    bad = {cells.column: cells.rows.tolist() for cells in SCHEMA.encode_rows(columns).bad}
    assert bad == {"age": list(range(11)), "sex": [10, 11], "bmi": [11]}


def test_everything_that_a_schema_lacks_is_said_at_once():
    facts = {"columns": {"age": {"minimum": 0}, "sex": {}, "gone": {"minimum": 0, "maximum": 1}}}
    with pytest.raises(InvalidInputError) as caught:
        Schema.from_tables(facts, target="diagnosis", header=HEADER)
    message = str(caught.value)
    assert "for id, bmi, age, sex" in message
    assert "classes = [...] for the values of diagnosis" in message
    assert "would be a release" in message
    assert "the table lacks the columns gone" in message


def test_columns_of_another_table_are_compared():
    with pytest.raises(InvalidInputError, match="the table lacks the columns sex; the schema lacks the columns height"):
        SCHEMA.require_columns(["age", "bmi", "height", "diagnosis"])
    SCHEMA.require_columns(["age", "bmi", "sex", "diagnosis"])  # an ignored column may be absent


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"minimum": 1, "maximum": 1}, "minimum < maximum"),
        ({"minimum": 2, "maximum": 1}, "minimum < maximum"),
        ({"minimum": math.nan, "maximum": 1}, "minimum < maximum"),
        ({"minimum": 0, "maximum": math.inf}, "minimum < maximum"),
        ({"minimum": -1.7e308, "maximum": 1.7e308}, "minimum < maximum"),
        ({"minimum": 0, "maximum": 10**400}, "minimum < maximum"),
        ({"minimum": False, "maximum": True}, "minimum < maximum"),
        ({"minimum": "0", "maximum": "1"}, "minimum < maximum"),
        ({"minimum": 0, "maximum": 1, "categories": ["a", "b"]}, "or categories alone"),
        ({"categories": ["a"]}, "has 1 values"),
        ({"categories": ["a", "a"]}, "'a' 2 times"),
        ({"categories": ["a", " b"]}, "without blanks"),
        ({"categories": ["a", ""]}, "printable characters"),
        ({"categories": ["a", 1.5]}, "printable characters"),
        ({"categories": ["a", True]}, "printable characters"),
        ({"categories": ["a", 10**5000]}, "printable characters"),
        ({"categories": "ab"}, "is a str"),
        ({"categories": [str(i) for i in range(10**6)]}, "has 1,000,000 values"),
        ({"ignore": True, "minimum": 0}, "ignore = true alone"),
        ({"ignore": "yes"}, "ignore = true alone"),
        ({"minimun": 0, "maximum": 1}, "did you mean 'minimum'"),
    ],
)
def test_columns_that_are_not_valid(column, message):
    facts = FACTS | {"columns": {"age": column}}
    with pytest.raises(InvalidInputError, match=message) as caught:
        Schema.from_tables(facts)
    assert "'age'" in str(caught.value)
    assert len(str(caught.value)) < 400
    with pytest.raises(InvalidInputError):
        Schema.from_json({**facts, "columns": [{"name": "age", **column}]})


@pytest.mark.parametrize(
    "record",
    [
        None, [], "x", 3, {}, {"columns": {}}, FACTS, SCHEMA.json() | {"target": 3}, SCHEMA.json() | {"target": "age"},
        SCHEMA.json() | {"classes": None}, SCHEMA.json() | {"classes": ["a"]}, SCHEMA.json() | {"classes": [["a"], 1]},
        SCHEMA.json() | {"columns": []}, SCHEMA.json() | {"columns": [{"name": "a", "ignore": True}]},
        SCHEMA.json() | {"columns": [[]]}, SCHEMA.json() | {"columns": [{"name": ["a"]}]}, SCHEMA.json() | {"more": 1},
        SCHEMA.json() | {"columns": SCHEMA.json()["columns"] * 2}, SCHEMA.json() | {"columns": [{"name": "a"}]},
        SCHEMA.json() | {"columns": [{"name": "a\nb", "minimum": 0, "maximum": 1}]},
        SCHEMA.json() | {"columns": [{"name": f"c{i}", "categories": list(range(9_000))} for i in range(12)]},
    ],
)  # fmt: skip
def test_records_that_are_no_schema(record):
    with pytest.raises(InvalidInputError) as caught:
        Schema.from_json(record)
    assert "\n" not in str(caught.value)


def test_a_schema_survives_json():
    assert Schema.from_json(json.loads(json.dumps(SCHEMA.json()))) == SCHEMA


def test_the_target_is_stated_once():
    facts = {key: FACTS[key] for key in ("classes", "columns")}
    assert Schema.from_tables(facts, target="diagnosis") == SCHEMA
    with pytest.raises(InvalidInputError, match="--target"):
        Schema.from_tables(facts)
    with pytest.raises(InvalidInputError, match="target is 'y', in the schema 'diagnosis'"):
        Schema.from_tables(FACTS, target="y")


def test_radii_are_nearly_the_range_times_the_radius():
    radii = SCHEMA.column_radii(0.1, "linf")
    assert radii.keys() == {"age", "bmi"}
    assert 0 <= 12 - radii["age"] < 2e-5
    assert 0 <= 5 - radii["bmi"] < 7e-6
    assert SCHEMA.column_radii(0.1, "l2") == SCHEMA.column_radii(0.1, "l1") == radii
    assert SCHEMA.column_radii(0.2, "linf")["age"] > 1.9 * radii["age"]
    assert 0.0999995 < numeric(1e9, 1e9 + 1).column_radii(0.1, "linf")["x"] < 0.1
    assert SCHEMA.column_radii(math.inf, "linf")["age"] <= 120
    for nothing in (0, 2**-23):
        assert set(SCHEMA.column_radii(nothing, "linf").values()) == {0.0}
    assert numeric(1e16, 1e16 + 2).column_radii(0.5, "linf") == {"x": 0.0}  # float64 has no number between the bounds


def test_radii_are_rounded_down():
    schema, ulp = numeric(0.1, 0.7), Fraction(math.ulp(0.7))
    for radius in np.random.default_rng(0).random(200).tolist():
        exact = (Fraction(radius) - Fraction(1, 2**23)) * (Fraction(0.7) - Fraction(0.1)) - ulp
        assert 0 <= exact - Fraction(schema.column_radii(radius, "l2")["x"]) < ulp


@pytest.mark.parametrize(("radius", "norm"), [(-0.1, "linf"), (math.nan, "linf"), (0.1, "l3"), (0.1, None)])
def test_radii_of_nonsense(radius, norm):
    with pytest.raises(InvalidInputError, match="valid: "):
        SCHEMA.column_radii(radius, norm)


def decimal_text(value):
    """A fraction whose denominator is a power of two, written out exactly."""
    digits = value.denominator.bit_length() - 1
    return f"{int(value * 10**digits)}e-{digits}"


bounds = st.one_of(
    st.tuples(
        st.floats(-1e300, 1e300), st.floats(1e-12, 1e12, allow_subnormal=False)
    ).map(lambda pair: (pair[0], pair[0] + pair[1] * max(1e-3, abs(pair[0]) * 1e-6))),
    st.sampled_from([(1e9, 1e9 + 1), (-1e15, -1e15 + 1), (0.0, 5e-324 * 64), (1e15, 1e15 + 0.25), (-1e-300, 1e300)]),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(bounds, st.floats(0, 1), st.floats(0, 1), st.sampled_from([-1, 1]), st.integers(0, 2**20))
@example((1e9, 1e9 + 1), 0.1, 0.5, 1, 0)
@example((1e9, 1e9 + 1), 2**-22, 0.3, -1, 1)
@example((0.0, 1.0), 1e-3, 0.75, 1, 0)
def test_a_value_moved_by_its_radius_moves_its_feature_by_less(pair, radius, place, sign, finer):
    """Values as written, finer than float64 can hold, moved by exactly the number that was promised."""
    low, high = pair
    assume(low < high)
    assume(math.isfinite(high - low))
    schema = numeric(low, high)
    promised = Fraction(schema.column_radii(radius, "linf")["x"])
    assume(promised > 0)
    step = Fraction(math.ulp(max(abs(low), abs(high)))) / 2**21
    value = Fraction(low) + Fraction(place) * (Fraction(high) - Fraction(low)) + finer * step
    moved = value + sign * promised
    if value.denominator.bit_length() > 1000 or moved.denominator.bit_length() > 1000:
        cells = np.array([float(value), float(moved)])  # correctly rounded, as text is
    else:
        cells = [decimal_text(value), decimal_text(moved)]
    first, second = (Fraction(float(x)) for x in schema.encode({"x": cells})[:, 0])
    assert abs(first - second) < Fraction(radius)


def test_without_the_slack_a_promise_would_be_broken():
    """The same search finds values that a plain radius·range would have let through: it is not blind."""
    schema, radius = numeric(0.0, 1.0), 2.0**-20
    generator = np.random.default_rng(0)
    values = generator.random(20_000)
    pairs = np.stack([values, values + radius], axis=1).ravel()
    moves = np.abs(np.diff(schema.encode({"x": pairs})[:, 0].reshape(-1, 2).astype(np.float64)))
    assert moves.max() >= radius
    pairs = np.stack([values, values + schema.column_radii(radius, "linf")["x"]], axis=1).ravel()
    moves = np.abs(np.diff(schema.encode({"x": pairs})[:, 0].reshape(-1, 2).astype(np.float64)))
    assert moves.max() < radius


def test_text_and_numbers_are_encoded_alike():
    values = np.random.default_rng(1).normal(size=1000) * 100
    schema = numeric(-50, 70)
    assert np.array_equal(schema.encode({"x": values}), schema.encode({"x": [repr(v) for v in values.tolist()]}))
