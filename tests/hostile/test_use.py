"""Attempts to get a radius said that is not proven, or a place published, by using a finished run."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import securesgd as ss
from securesgd.data.columns import Column
from securesgd.data.schema import Schema
from securesgd.errors import InvalidInputError
from securesgd.predict_files import predict_files
from securesgd.run import Prediction, load_run
from securesgd.serve.answers import radius_in_words
from securesgd.serve.inputs import InputReader
from securesgd.theory.rounding import probability_of_success
from tests.command_line import run_here

SMALL = {"epsilon": 8.0, "delta": 1e-5, "batch_size": 20, "steps": 2, "accountant": "rdp"}


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    place = tmp_path_factory.mktemp("table")
    columns = "".join(f"[columns.{name}]\nminimum = 0\nmaximum = 100\n" for name in ("age", "dose"))
    (place / "people.schema.toml").write_text(f'target = "ill"\nclasses = ["no", "yes"]\n{columns}')
    rows = [f"{i % 90},50,{('no', 'yes')[i % 90 > 40]}" for i in range(200)]
    (place / "people.csv").write_text("\n".join(["age,dose,ill", *rows]) + "\n")
    settings = [word for s in ("steps=30", "accountant=rdp", "batch_size=32") for word in ("--set", s)]
    result = run_here(
        "train", "--dataset", place / "people.csv", "--method", "dp-ibp", "--out", place / "run", *settings
    )
    assert result.returncode == 0, result.stderr
    (place / "new.csv").write_text("age,dose\n60,50\n")
    return load_run(place / "run"), place / "new.csv"


def test_a_share_of_a_box_is_not_said_to_be_a_radius(table_run):
    run, path = table_run
    with pytest.raises(InvalidInputError, match="box is given"):
        run.predict(torch.tensor([0.6, 0.5]), box=("0.5", "0"))
    with pytest.raises(InvalidInputError, match="box is given"):
        predict_files(run, [path], box=("0.5", "0"))


def test_columns_do_not_move_further_because_the_range_is_small(table_run):
    """Inside 0.4..0.6 nothing moves by more than 0.2, so intervals prove more there: of columns that proves nothing."""
    run, path = table_run
    with pytest.raises(InvalidInputError, match="valid for a table"):
        predict_files(run, [path], input_range=(0.4, 0.6))
    (whole,) = predict_files(run, [path], input_range=(0.0, 1.0)).predictions
    assert whole == predict_files(run, [path]).predictions[0]


def test_numbers_of_0_to_255_are_refused_by_a_network_without_noise_too(table_run):
    run, _ = table_run
    with pytest.raises(InvalidInputError, match="outside"):
        run.predict(torch.tensor([[0.6, 0.5], [255.0, 3.0]]))


def test_the_radius_of_tensors_without_a_range_is_about_any_change_whatever_else_is_in_the_batch(tmp_path):
    """The network is of numbers below 0, too, so that a change that leaves 0..1 counts."""
    inputs, targets = torch.randn(60, 2), torch.arange(60) % 2
    net = nn.Sequential(nn.Linear(2, 2))
    run = ss.train(net, (inputs, targets), out=tmp_path / "run", **SMALL)
    weight, bias = run.model.state_dict().values()
    x = torch.tensor([[0.05, 0.05], [0.95, 0.05], [0.5, 0.5]])
    alone, beside = run.predict(x), run.predict(torch.cat([x, torch.tensor([[-3.0, 4.0]])]))
    assert [p.radius for p in alone] == [p.radius for p in beside[:3]]
    for point, said in zip(x, alone, strict=True):
        slope = weight[1 - said.label] - weight[said.label]
        worst = point + 0.999 * said.radius * slope.sign()  # of the whole ball, not of the part of it in 0..1
        assert slope @ worst + bias[1 - said.label] - bias[said.label] <= 0


def test_no_probability_of_failure_is_rounded_away():
    said = Prediction(label=1, class_name="1", radius=0.1, abstained=False, draws=9, noise="fresh", failure_prob=1e-9)
    assert "at least 0.999999999 for" in said.guarantee
    assert [probability_of_success(p) for p in (0.001, 0.05, 1e-300)] == ["0.999", "0.95", "0.999999999999999"]


def test_words_about_columns_never_say_more_than_their_radii():
    """The numbers of a time in nanoseconds are 256 apart, a quarter of the range of this column."""
    start = 1.7e18
    columns = (Column(name="age", minimum=0, maximum=100), Column(name="time", minimum=start, maximum=start + 1024))
    schema = Schema(target="y", classes=("a", "b"), columns=columns)
    said = Prediction(label=1, class_name="b", radius=0.35, abstained=False, draws=0)
    words = radius_in_words(said, "table", "linf", 0.0, schema)
    share = float(words.partition("less than ")[2].partition(" %")[0]) / 100
    radii = schema.column_radii(said.radius, "linf")
    assert 0 < share <= min(radii["age"] / 100, radii["time"] / 1024)
    small = Prediction(label=1, class_name="b", radius=0.2, abstained=False, draws=0)
    assert schema.column_radii(small.radius, "linf")["time"] == 0
    assert "nothing is proven" in radius_in_words(small, "table", "linf", 0.0, schema)


def test_the_service_does_not_round_the_numbers_that_its_radius_is_about():
    reader = InputReader({"input_shape": [2]}, None)
    given = [16777217.0, 0.1]
    values = reader.read(json.dumps({"pixels": given}).encode(), "application/json").values
    assert values.tolist() == given
    assert reader.read(b'{"pixels": [0.5, 3]}', "application/json").values.dtype == torch.float32
    with pytest.raises(InvalidInputError, match=r"1\.00000001"):
        InputReader({"input_shape": [2]}, (0.0, 1.0)).read(b'{"pixels": [1.00000001, 0]}', "application/json")


def test_whole_numbers_do_not_take_the_rounding_off_the_voters_radius():
    """Of 8 bits, the size of -128 is -128."""
    pytest.importorskip("onnxruntime")
    from tests.test_export import voter

    vote = {"rounding_at_zero": 0.0, "rounding_per_unit": 0.001, "sensitivity": 1.0}
    as_bytes, as_floats = (np.array([-128, 1], kind) for kind in (np.int8, np.float64))
    assert voter.proven_radius(0.9, as_bytes, vote) == voter.proven_radius(0.9, as_floats, vote)


def test_the_card_names_a_rule_from_outside_without_its_place(tmp_path):
    place = tmp_path / "secret-place"
    place.mkdir()
    (place / "rules.py").write_text("import numpy as np\ndef mine(p, q, *_, **__):\n    return np.zeros_like(p)\n")
    settings = [word for s in ("steps=2", "accountant=rdp", "batch_size=64", "copies=1") for word in ("--set", s)]
    train = run_here("train", "--dataset", "digits", "--method", "secure-sgd", "--out", tmp_path / "run", *settings)
    assert train.returncode == 0, train.stderr
    options = ("--examples", "5", "--draws", "100", "--rule", f"{place}/rules.py:mine")
    assert run_here("certify", tmp_path / "run", *options).returncode == 0
    assert run_here("report", tmp_path / "run").returncode == 0
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert "| rules.py:mine (from outside" in card
    assert "secret-place" not in card
