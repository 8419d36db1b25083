"""Attempts to break what is promised about tables and folders: radii in units, boxes, and what is published of them."""

import json
import shutil
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.certificates.column_radii import scaled_box
from securesgd.certificates.record import CertifySettings
from securesgd.config import run_config
from securesgd.data.columns import Column
from securesgd.data.schema import Schema
from securesgd.errors import InvalidInputError
from securesgd.planning import plan_run
from securesgd.report.page import report

SMALL = {
    "noise_multiplier": 0.1,
    "delta": 1e-4,
    "batch_size": 60,
    "steps": 2,
    "accountant": "rdp",
    "learning_rate": 1e-3,
}
FACTS = """target = "state"
classes = ["well", "ill"]
[columns.age]
minimum = 0
maximum = 120
[columns.dose]
minimum = 0
maximum = 0.01
"""


def network():
    """A network that knows at what age people are ill."""
    layer = nn.Linear(2, 2)
    layer.weight.data = torch.tensor([[-20.0, 1.0], [20.0, -1.0]])
    layer.bias.data = torch.tensor([9.5, -9.5])
    return nn.Sequential(layer)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    values = np.random.default_rng(0).uniform(0.4, 0.6, (240, 2)) * [120, 0.01]
    rows = [f"{age:.4f},{dose:.8f},{'ill' if age > 60 else 'well'}" for age, dose in values]
    (folder / "people.csv").write_text("\n".join(["age,dose,state", *rows]))
    (folder / "schema.toml").write_text(FACTS)
    return folder / "people.csv"


@pytest.fixture(scope="module")
def trained(table):
    run = ss.train(network(), ss.load_data(str(table)), out=table.parent / "run", **SMALL)
    run.certify()
    return run.path


@pytest.fixture
def run(trained, tmp_path):
    return ss.load_run(shutil.copytree(trained, tmp_path / "run"), network=network())


def test_columns_move_by_their_radius_only_inside_a_range_that_holds_every_value(run):
    """A proof inside 0.4..0.6 says nothing about an age of 80, which a radius of 24 years would allow for."""
    with pytest.raises(InvalidInputError, match=r"input_range is 0.4,0.6; valid for a table"):
        run.certify(input_range=(0.4, 0.6), again=True)
    run.certify(input_range=None, again=True)


def test_a_network_for_a_table_is_not_trained_for_a_part_of_its_range(table, tmp_path):
    model = ss.IntervalNetwork(network(), (2,))
    with pytest.raises(InvalidInputError, match="valid for a table"):
        ss.train(model, ss.load_data(str(table)), out=tmp_path / "run", input_range=(0.3, 0.7), **SMALL)
    assert not (tmp_path / "run").exists()


def test_wider_bounds_in_the_record_give_no_wider_radii_in_the_report(run, tmp_path):
    record = run.path / "model.json"
    assert not any("column-radii" in line for line in report([run.path], tmp_path / "before.html").missing)
    assert "0 to 120" in (tmp_path / "before.html").read_text()
    content = json.loads(record.read_text())
    content["preprocessing"]["schema"]["columns"][0]["maximum"] = 1200.0
    record.write_text(json.dumps(content))
    missing = report([run.path], tmp_path / "after.html").missing
    assert any("column-radii.csv is not that of" in line for line in missing)
    assert "0 to 1200" not in (tmp_path / "after.html").read_text()


def test_a_box_is_in_units_however_it_is_given(run):
    box = ("5", "0.001")  # taken for features, a tenth of the range of doses would be a thousandth
    expected = run.certify(box=box, again=True).records["interval"]["settings"]
    for settings in (CertifySettings(box=box), CertifySettings(box=box, norm="linf", seed=0)):
        assert run.certify(settings=settings, again=True).records["interval"]["settings"] == expected
    with pytest.raises(InvalidInputError, match="box_in_units is given; valid: box"):
        run.certify(box=("0.001", "0.001"), box_in_units=("100", "100"), again=True)


def test_a_share_of_a_box_that_rounding_exceeds_is_not_proven(run):
    schema = Schema.from_json(run.record["preprocessing"]["schema"])
    with pytest.raises(InvalidInputError, match="valid: 0, or a percentage from 1% on"):
        scaled_box(("0.00001%", "0"), schema)
    with pytest.raises(InvalidInputError, match=r"a share from 0.01 on"):
        run.certify(box=("5", "0"), radius=0.001, again=True)
    wide = run.certify(box=("120", "0.01"), tolerance=1e-6, again=True)
    radii = [row[f"radius_{rule}"] for row in wide.rows for rule in ("tight", "interval", "linear")]
    assert min(radii) == 0
    assert min(radius for radius in radii if radius) >= 0.01


@pytest.mark.parametrize(
    ("minimum", "maximum"),
    [(0, 1), (-1e307, 7e306), (0, 5e-324), (0, 1e-310), (2**53, 2**53 + 64), (1e15, 1e15 + 1), (-1e-5, 1e5), (0, 3e38)],
)
def test_a_column_moved_by_its_radius_as_text_stays_within_it(minimum, maximum):
    """Values at the bounds and between floats, written with all their digits: the text is what the person means."""
    column = Column(name="x", minimum=minimum, maximum=maximum)
    schema = Schema(target="y", classes=("a", "b"), columns=(column,))
    rng, low, high = np.random.default_rng(0), Fraction(column.minimum), Fraction(column.maximum)
    for radius in (1e-7, 2e-7, 1e-4, 0.3, 1.0):
        step = Fraction(schema.column_radii(radius, "linf")["x"])
        values = [low, high, (low + high) / 2, *(low + Fraction(float(u)) * (high - low) for u in rng.random(40))]
        pairs = [(v, w) for v in values for w in (v + step, v - step, v + step * Fraction(float(rng.random())))]
        first, second = (schema.encode({"x": [_digits(pair[i]) for pair in pairs]})[:, 0] for i in (0, 1))
        assert np.abs(first.astype(np.float64) - second.astype(np.float64)).max() <= radius


def test_a_plan_without_a_public_number_of_examples_does_not_depend_on_it():
    config = run_config("data.npz", "dpsgd", fit_to=(400, (3,)), population=1000, accountant="rdp")
    plans = [plan_run(config, examples, (3,), 2, steps=[20], timed=False) for examples in (400, 401)]
    assert plans[0].rows == plans[1].rows
    assert plans[0].settings == plans[1].settings
    assert "--set population=1000" in plans[0].settings  # without it, train would make another claim
    by_rate = run_config("data.npz", "dpsgd", fit_to=(400, (3,)), sampling_rate=0.1, accountant="rdp")
    plans = [plan_run(by_rate, examples, (3,), 2, steps=[20], timed=False) for examples in (400, 401)]
    assert plans[0].rows == plans[1].rows
    assert "--set sampling_rate=0.1" in plans[0].settings


def test_a_share_set_apart_by_a_function_tells_the_number_of_examples_too(table, tmp_path, monkeypatch):
    (tmp_path / "hidden_share.py").write_text(
        f"from securesgd import load_data\ndef people():\n    return load_data({str(table)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = SMALL | {"population": 1000}
    with pytest.raises(InvalidInputError, match="the test examples are a share of all"):
        ss.train(network(), ss.load_data("hidden_share:people"), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def _digits(value):
    """Return a number as text, to within far less than any float can tell apart."""
    context = Context(prec=60, Emin=-999_999, Emax=999_999)
    return str(context.divide(Decimal(value.numerator), Decimal(value.denominator)))
