"""The full statement has every figure with what it rests on, in words and in JSON of its schema."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from securesgd.errors import InvalidInputError
from securesgd.privacy import (
    GaussianRelease,
    Ledger,
    NoiseScheme,
    RepeatAndSelect,
    SampledGaussianSteps,
    UnprotectedRelease,
    full_statement,
    group_epsilon,
    membership_bounds,
    read_ledger,
    statement_rows,
    statement_schema,
)

STEPS = SampledGaussianSteps(sampling_rate=0.02, noise_multiplier=1.1, steps=50)
RELEASE = GaussianRelease(noise_multiplier=20.0, label="redistribution vector r")
LOST = UnprotectedRelease(label="r", reason="as published, from private gradients")
NOISE = NoiseScheme(clipping_norm=1.0, sensitivity=1.001, grid=1e-5, bound=1.002, coordinates=1000, seeded=False)
VALIDATOR = jsonschema.Draft202012Validator(statement_schema())


def contents(folder, *events, **header):
    header = {"delta": 1e-5, "dataset_size": 60000, "noise": NOISE} | header
    with Ledger.create(folder / "ledger.jsonl", **header) as ledger:
        for event in events:
            ledger.record(event)
    return read_ledger(folder / "ledger.jsonl")


def checked_json(full):
    """The JSON form after a round trip through text, if it is of the schema."""
    record = json.loads(json.dumps(full.json(), allow_nan=False))
    VALIDATOR.validate(record)
    return record


def values(full):
    return {label: value for label, value, _ in statement_rows(full)}


def test_a_guaranteed_run_states_every_figure(tmp_path):
    full = full_statement(contents(tmp_path, RELEASE, STEPS, STEPS), finished=True)
    record, events = checked_json(full), [RELEASE, STEPS, STEPS]
    bounds = membership_bounds(events, 1e-5)
    assert record["guaranteed"]
    assert record["epsilon"] == full.statement.epsilon
    assert record["gaussian_dp"]["mu"] == bounds.mu
    assert [x["true_positive_rate"] for x in record["membership_attacks"]] == [t for _, t in bounds.true_positive_rates]
    assert [(x["examples"], x["epsilon"]) for x in record["groups"]] == [
        (k, group_epsilon(events, 1e-5, k)) for k in (2, 5, 10)
    ]
    assert record["accounted"] == {name: record[name] for name in ("gaussian_dp", "membership_attacks", "groups")}
    assert record["charged_steps"] == 100
    assert [x["kind"] for x in record["releases"]] == ["gaussian-release", "sampled-gaussian-steps"]
    assert record["releases"][1] == {"kind": "sampled-gaussian-steps", "sampling_rate": 0.02, "noise_multiplier": 1.1,
                                     "steps": 100}  # fmt: skip
    assert (record["tuning_runs"], record["not_available"], record["finished"]) == (0, [], True)
    rows = values(full)
    for label in ("epsilon", "delta", "unit of privacy", "adjacency", "training examples", "mu of Gaussian DP",
                  "found at 1 % false positives", "found at 0.1 % false positives", "epsilon of 2 examples",
                  "epsilon of 5 examples", "epsilon of 10 examples", "DP-SGD steps", "release", "charged steps",
                  "sampling", "clipping norm", "proven bound", "generator", "released", "not covered", "assumed",
                  "tuning runs", "accountant", "version of securesgd"):  # fmt: skip
        assert rows[label], label
    assert "redistribution vector r" in full.json()["released"]


def test_what_is_shown_is_never_below_what_was_computed(tmp_path):
    full = full_statement(contents(tmp_path, STEPS))
    rows = values(full)
    assert full.statement.epsilon <= float(rows["epsilon"]) < full.statement.epsilon + 1e-4
    assert full.membership.mu <= float(rows["mu of Gaussian DP"]) < full.membership.mu + 1e-4
    for group in full.groups:
        assert group.epsilon <= float(rows[f"epsilon of {group.examples} examples"]) < group.epsilon + 1e-4
    for (_, true), label in zip(full.membership.true_positive_rates, ("1 %", "0.1 %"), strict=True):
        shown = float(rows[f"found at {label} false positives"].split()[0]) / 100
        assert true <= shown < true * 1.01


@pytest.mark.parametrize(
    ("events", "header", "words"),
    [
        ([STEPS, LOST], {}, "for the other releases"),
        ([STEPS, GaussianRelease(noise_multiplier=0, label="mean")], {}, "for the other releases"),
        ([STEPS], {"noise": replace(NOISE, seeded=True)}, "with a secret key"),
    ],
)
def test_without_a_guarantee_nothing_is_claimed(tmp_path, events, header, words):
    full = full_statement(contents(tmp_path, *events, **header))
    record, rows, alone = checked_json(full), values(full), membership_bounds([STEPS], 1e-5)
    assert not record["guaranteed"]
    assert record["epsilon"] == record["gaussian_dp"]["mu"] == "inf"
    assert {x["true_positive_rate"] for x in record["membership_attacks"]} == {1}
    assert {x["epsilon"] for x in record["groups"]} == {"inf"}
    assert record["accounted"]["gaussian_dp"]["mu"] == alone.mu
    assert record["accounted"]["groups"][0]["epsilon"] == group_epsilon([STEPS], 1e-5, 2)
    assert rows["guaranteed"].startswith("no: ")
    for label in ("epsilon", "mu of Gaussian DP", "epsilon of 2 examples"):
        assert rows[label].startswith("infinity (")
        assert words in rows[label]
    assert rows["found at 1 % false positives"].startswith("100 % (")
    assert "attack finds" not in record["in_words"]


def test_nothing_but_an_unprotected_release(tmp_path):
    full = full_statement(contents(tmp_path, LOST, noise=None))
    assert values(full)["epsilon"] == "infinity"
    assert values(full)["noise"] == "not recorded"
    assert checked_json(full)["not_covered"][0] == "r: as published, from private gradients"


def test_an_empty_ledger_has_cost_nothing(tmp_path):
    record = checked_json(full_statement(contents(tmp_path), finished=False))
    assert (record["epsilon"], record["gaussian_dp"]["mu"], record["released"]) == (0, 0, [])
    assert "not finished" in values(full_statement(read_ledger(tmp_path / "ledger.jsonl"), finished=False))["run"]


def test_the_rdp_accountant_has_its_own_epsilon_and_the_same_other_figures(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    rdp = full_statement(contents(tmp_path / "a", STEPS, accountant="rdp"))
    pld = full_statement(contents(tmp_path / "b", STEPS))
    assert rdp.statement.epsilon > pld.statement.epsilon
    assert (rdp.membership, rdp.groups) == (pld.membership, pld.groups)
    assert checked_json(rdp)["accountant"] == "rdp"


def test_a_search_of_settings_makes_figures_unavailable_not_wrong(tmp_path):
    full = full_statement(contents(tmp_path, RepeatAndSelect(trial=(STEPS,), mean=5.0, shape=1.0), accountant="rdp"))
    record, rows = checked_json(full), values(full)
    assert record["gaussian_dp"] is record["membership_attacks"] is None
    assert [x["epsilon"] for x in record["groups"]] == [None, None, None]
    assert len(record["not_available"]) == 4
    assert all("RepeatAndSelect" in reason for reason in record["not_available"])
    assert "mu of Gaussian DP" not in rows
    assert (record["tuning_runs"], record["charged_steps"]) == (5, STEPS.steps)
    assert "5 on average" in rows["tuning runs"]
    assert record["releases"][-1]["kind"] == "repeat-and-select"
    assert f"{STEPS.steps:,} × rate" in rows["release"]


def test_a_person_with_more_than_the_grid_can_hold(tmp_path):
    full = full_statement(contents(tmp_path, GaussianRelease(noise_multiplier=0.03, label="mean")), groups=(2, 90))
    record = checked_json(full)
    assert isinstance(record["groups"][0]["epsilon"], float)
    assert record["groups"][1]["epsilon"] is None
    assert record["not_available"][0].startswith("epsilon for a person with 90 examples: one step can lose")


@pytest.mark.parametrize("size", [1, 0, -2, 101, 2.0, "2"])
def test_a_wrong_group(tmp_path, size):
    with pytest.raises(InvalidInputError, match=r"group is .*; valid: an integer from 2 to 100"):
        full_statement(contents(tmp_path, STEPS), groups=[size])


def test_the_schema_is_one_and_refuses_what_a_statement_cannot_be(tmp_path):
    jsonschema.Draft202012Validator.check_schema(statement_schema())
    record = checked_json(full_statement(contents(tmp_path, STEPS)))
    wrong = [
        record | {"epsilon": "inf"},
        record | {"guaranteed": False},
        record | {"delta": 0},
        record | {"unit": "one user"},
        record | {"remark": "none"},
        record | {"groups": [{"examples": 2}]},
        record | {"gaussian_dp": record["gaussian_dp"] | {"mu": math.nan} | {"mu": -1}},
        {name: value for name, value in record.items() if name != "not_covered"},
    ]
    assert not [change for change in wrong if VALIDATOR.is_valid(change)]


def test_the_schema_is_shipped():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/securesgd"]
    assert (Path(__file__).parents[2] / "src/securesgd/privacy/statement_schema.json").exists()
