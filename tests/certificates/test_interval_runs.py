"""Interval certificates of a run folder: complete, resumable, checked again, and the command that makes them."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from securesgd.certificates.certify import certify
from securesgd.certificates.record import CertifySettings
from securesgd.certificates.run_certificates import CERTIFICATES, RECORD, certify_run
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.report.page import report
from securesgd.report.run_record import read_run
from securesgd.run import load_run
from securesgd.run_training import train, train_run
from tests.command_line import run_here


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    """A run of dpsgd that learned most digits."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train_run(
        run_config("digits", "dpsgd", steps=70, batch_size=200, epsilon=50.0, accountant="rdp", noise_seed=1), folder
    )
    return folder


@pytest.fixture(scope="module")
def certified_run(plain_run, tmp_path_factory):
    folder = Path(shutil.copytree(plain_run, tmp_path_factory.mktemp("certified") / "run"))
    load_run(folder).certify(examples=24)
    return folder


@pytest.fixture
def folder(certified_run, tmp_path):
    return Path(shutil.copytree(certified_run, tmp_path / "run"))


def table(folder):
    with (folder / CERTIFICATES).open(newline="") as file:
        return list(csv.DictReader(file))


def write_table(folder, rows):
    with (folder / CERTIFICATES).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def content(folder):
    return {name: (folder / name).read_bytes() for name in (CERTIFICATES, RECORD)}


def test_a_run_without_noise_has_certificates_by_intervals(folder):
    record = json.loads((folder / RECORD).read_text())
    assert set(record) == {"interval"}
    record = record["interval"]
    assert record["examples"] == 24
    assert record["without_noise"] is False
    assert record["rules"] == ["tight", "interval", "linear"]
    for claim in ("24 test examples", "for certain", "no failure probability", "whatever order", "inside 0..1"):
        assert claim in record["guarantee"]
    assert "without its noise" not in record["guarantee"]
    data = load_data("digits")
    rows = table(folder)
    assert [int(row["index"]) for row in rows] == list(range(24))
    assert {(row["family"], row["norm"], row["draws"], row["p_lower"]) for row in rows} == {
        ("interval", "linf", "0", "")
    }
    certificates = certify(load_run(folder).model, data.test_inputs[:24])
    np.testing.assert_allclose([float(row["radius_tight"]) for row in rows], certificates.radius["tight"], atol=1.1e-4)
    accuracy = np.mean(certificates.prediction == data.test_targets[:24].numpy())
    assert record["summary"]["accuracy"]["share"] == pytest.approx(accuracy)
    assert record["summary"]["certified_accuracy"]["tight"]["0.01"]["share"] > 0.3


def test_certification_resumes_and_is_never_silently_replaced(plain_run, folder, tmp_path, monkeypatch):
    other = Path(shutil.copytree(plain_run, tmp_path / "parts"))
    monkeypatch.setattr("securesgd.certificates.parts.FIRST_PART", 5)
    monkeypatch.setattr("securesgd.certificates.parts.LARGEST_PART", 5)
    for module in ("intervals", "run_intervals"):
        monkeypatch.setattr(f"securesgd.certificates.{module}.BLOCK", 5)

    def stop(done, of):
        if done > 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_run(other).certify(examples=24, on_progress=stop)
    assert 0 < len(table(other)) < 24
    load_run(other).certify(examples=24)
    for a, b in zip(table(other), table(folder), strict=True):
        assert a["index"] == b["index"]
        assert float(a["radius_tight"]) == pytest.approx(float(b["radius_tight"]), abs=1.1e-4)
    before = content(folder)
    with pytest.raises(InvalidInputError, match=r"interval certificates by other settings \(bounds best"):
        load_run(folder).certify(examples=24, bounds="interval")
    assert content(folder) == before
    result = load_run(folder).certify(examples=24, bounds="interval", again=True)
    assert {row["radius_linear"] for row in result.rows_in("interval")} == {0.0}


FORGERIES = {
    "radius alone": lambda row: {"radius_tight": "0.9"},
    "radius of boxes": lambda row: {"radius_tight": "0.9", "radius_interval": "0.9"},
    "radius of lines": lambda row: {"radius_tight": "0.9", "radius_linear": "0.9"},
    "radius of boxes up to the tight one": lambda row: {"radius_interval": row["radius_tight"]},
    "not a number": lambda row: {"radius_linear": "nan"},
    "negative": lambda row: {"radius_interval": "-1"},
    "no radius": lambda row: {"radius_interval": ""},
    "prediction": lambda row: {"prediction": str((int(row["prediction"]) + 1) % 10)},
    "prediction without radius": lambda row: {
        "prediction": str((int(row["prediction"]) + 1) % 10),
        "radius_tight": "0", "radius_interval": "0", "radius_linear": "0",
    },
    "class that is none": lambda row: {"prediction": "10", "radius_tight": "0", "radius_interval": "0",
                                       "radius_linear": "0"},
    "label": lambda row: {"label": str((int(row["label"]) + 1) % 10)},
    "example": lambda row: {"index": "4"},
    "example that is none": lambda row: {"index": "100000"},
    "abstained": lambda row: {"abstained": "1"},
    "draws": lambda row: {"draws": "5"},
    "answer": lambda row: {"answer": "yes"},
    "norm": lambda row: {"norm": "box"},
    "another norm": lambda row: {"norm": "l2"},
    "family": lambda row: {"family": "intervals"},
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_an_edited_row_is_refused_and_left_alone(name, folder):
    rows = table(folder)
    rows[3] |= FORGERIES[name](rows[3])
    write_table(folder, rows)
    before = content(folder)
    with pytest.raises(DamagedFileError) as caught:
        load_run(folder).certify(examples=30)
    assert "\n" not in str(caught.value)
    assert CERTIFICATES in str(caught.value)
    assert content(folder) == before


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record["interval"].update(rules=["tight"]),
        lambda record: record["interval"].update(rules=["tight", "interval", "linear", "mine"]),
        lambda record: record["interval"]["settings"].pop("family"),
        lambda record: record["interval"].update(weights="0" * 64),
        lambda record: record.update(linf=record.pop("interval")),
    ],
)
def test_an_edited_record_is_refused(edit, folder):
    record = json.loads((folder / RECORD).read_text())
    edit(record)
    (folder / RECORD).write_text(json.dumps(record))
    with pytest.raises(DamagedFileError) as caught:
        load_run(folder).certify(examples=24)
    assert "\n" not in str(caught.value)


def test_a_page_shows_no_rows_that_contradict_themselves(folder):
    rows = table(folder)
    rows[3]["radius_tight"] = "0.9"
    write_table(folder, rows)
    record = read_run(folder)
    assert not record.certificates
    assert any(line.startswith("certificates.csv cannot be read") for line in record.missing)


def test_rows_of_other_settings_do_not_count(folder):
    """A record whose settings were edited has another digest than its rows."""
    record = json.loads((folder / RECORD).read_text())
    record["interval"]["settings"]["input_range"] = [0.4, 0.6]
    (folder / RECORD).write_text(json.dumps(record))
    assert not read_run(folder).certificates
    with pytest.raises(InvalidInputError, match=r"other settings \(input_range"):
        load_run(folder).certify(examples=24)


@pytest.mark.slow  # trains a smoothed run first
def test_a_smoothed_run_holds_both_families(finished_run, tmp_path):
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    run, settings = load_run(folder), {"draws": 256, "selection_draws": 32}
    run.certify(examples=12, **settings)
    alone = table(folder)
    rows = [{name: cell for name, cell in row.items() if name != "family"} for row in alone]
    write_table(folder, rows)  # as an earlier version left it
    result = run.certify(family="interval", examples=16)
    assert set(json.loads((folder / RECORD).read_text())) == {"linf", "interval"}
    assert "without its noise" in result.records["interval"]["guarantee"]
    both = table(folder)
    assert [{name: row[name] for name in alone[0]} for row in both if row["family"] == "smoothing"] == alone
    assert all(row["radius_analytic"] == "" for row in both if row["family"] == "interval")
    by_intervals = [row for row in both if row["family"] == "interval"]
    assert len(by_intervals) == 16
    run.certify(examples=14, **settings)
    run.certify(norms="l2", examples=14, **settings)
    kept = table(folder)
    assert [row for row in kept if row["family"] == "interval"] == by_intervals
    assert {(row["family"], row["norm"]) for row in kept} == {
        ("smoothing", "linf"), ("smoothing", "l2"), ("interval", "linf")
    }  # fmt: skip
    assert run.falsify(family="interval")["sound"]
    assert run.falsify(examples=4, steps=2, restarts=0, eot=5)["sound"]
    out = tmp_path / "report.html"
    assert not [line for line in report([folder], out).missing if "certificates" in line]
    page = out.read_text()
    assert "linf, by intervals, of the network without its noise: 16 test examples" in page
    assert "linf: 14 test examples" in page
    assert "--family interval" in page
    forged = json.loads((folder / RECORD).read_text())
    forged["interval"]["without_noise"] = False
    (folder / RECORD).write_text(json.dumps(forged))
    report([folder], out)
    assert "of the network without its noise" in out.read_text()


def test_the_check_finds_a_certificate_that_is_too_large(folder):
    assert load_run(folder).falsify()["rules"]["tight"]["searched"] > 15
    rows = table(folder)
    for row in rows:
        row["radius_tight"] = "0.5"
    write_table(folder, rows)
    result = load_run(folder).falsify(steps=5)
    assert not result["sound"]
    assert result["allowed"] == 0
    assert "are WRONG" in result["rules"]["tight"]["in_words"]
    assert json.loads((folder / "falsified-interval.json").read_text()) == result


def test_predictions_carry_radii(plain_run):
    run = load_run(plain_run)
    inputs = run.data.test_inputs[:6]
    certificates = certify(run.model, inputs)
    for i, prediction in enumerate(run.predict(inputs)):
        assert prediction.label == certificates.prediction[i]
        assert prediction.radius == pytest.approx(certificates.radius["tight"][i], abs=1.1e-4)
        assert (prediction.draws, prediction.abstained) == (0, False)
    assert run.predict(inputs[0], radius=1e-3).radius == 1e-3
    with pytest.raises(InvalidInputError, match="not finite"):
        run.predict(inputs * float("nan"))


def test_predictions_of_other_layers_and_ranges(tmp_path):
    data = 20 * torch.rand(40, 6) - 10, torch.randint(3, (40,))
    for name, layer in (("supported", nn.ReLU()), ("unsupported", nn.GroupNorm(2, 8))):
        network = nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, 3))
        run = train(network, data, out=tmp_path / name, epsilon=8.0, delta=1e-3, batch_size=8, steps=2)
        radii = {prediction.radius for prediction in run.predict(data[0])}
        assert (radii == {0.0}) == (name == "unsupported")


def test_no_certified_example_falls_to_an_attack(plain_run, tmp_path):
    folder = Path(shutil.copytree(plain_run, tmp_path / "run"))
    effort = {"examples": 24, "sanity_checks": False, "steps": 5}
    evaluation = load_run(folder).attack(attacks="fgsm,madry", budget=[0.01, 0.03], **effort)
    assert evaluation.holds
    with (folder / "attacks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 96
    certified = [row for row in rows if float(row["clean_radius"]) >= float(row["budget"])]
    assert len(certified) > 12
    for row in certified:
        assert row["prediction"] == row["clean_prediction"]
    assert {row["clean_radius_published"] for row in rows} == {""}
    for cell in evaluation.cells.values():
        summary = cell["summary"]
        shares = summary["certified_accuracy"]["tight"]["clean"], summary["accuracy"], summary["clean_accuracy"]
        assert shares[0]["share"] <= shares[1]["share"] <= shares[2]["share"]
        assert summary["sandwich"]["allowed"] == 0


def test_the_command(folder):
    shown = run_here("certify", folder, "--examples", "24", "--falsify")
    assert shown.returncode == 0, shown.stderr
    assert "by intervals" in shown.stdout
    assert "no counter-example" in shown.stdout
    asked = run_here(
        "certify", folder, "--family", "interval", "--radius", "0.02", "--examples", "24", "--again", "--json"
    )
    record = json.loads(asked.stdout)["interval"]
    assert record["settings"]["radius"] == 0.02
    assert set(record["summary"]["certified_accuracy"]["tight"]) == {"0.02"}
    assert {row["answer"] for row in table(folder)} == {"yes", "no"}
    assert run_here("report", folder).returncode == 0
    assert run_here("certify", folder, "--examples", "26", "--radius", "0.02").returncode == 0  # rows are proven again
    for options, message in (
        (["--family", "boxes"], "unknown family 'boxes'"),
        (["--norm", "l2"], "norm is 'l2'; valid for interval certificates: linf"),
        (["--norm", "linf,l2"], "norms are linf, l2; valid for interval certificates: linf"),
        (["--bounds", "worst"], "unknown bounds 'worst'"),
        (["--box", "5,10%"], "box has 2 columns"),
        (["--box", "5,ten"], "column 1 of the box is 'ten'"),
        (["--rule", "analytic"], "unknown rule 'analytic'"),
        (["--input-range", "1,0"], "--input-range is '1,0'"),
        (["--radius", "0.1", "--tolerance", "0.1"], "not both"),
    ):
        refused = run_here("certify", folder, *options, "--again")
        assert refused.returncode == 2, options
        assert message in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1


def test_a_table_is_certified_in_shares_of_its_box(tmp_path):
    """A class by one column alone: its distance from the threshold over the width is the share of the box."""
    x = torch.rand(100, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([60.0, 1.0, 1.0, 1.0])
    y = (x[:, 0] > 30).long()
    model = nn.Linear(4, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]]))
        model.bias.copy_(torch.tensor([30.0, -30.0]))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    settings = CertifySettings(box=("5", "10%", "0", "0"), input_range=None)
    result = certify_run(tmp_path, model, x, y, ["linf"], settings)
    rows = result.rows_in("interval")
    exact = np.minimum(np.abs(x[:, 0].double().numpy() - 30) / 5, 1)
    np.testing.assert_allclose([row["radius_tight"] for row in rows], exact, atol=2e-4)
    assert {row["norm"] for row in rows} == {"box"}
    assert set(result.summaries["interval"]["certified_accuracy"]["tight"]) == {"0.25", "0.5", "0.75", "1"}
    assert "be off by 5, 10%, 0, 0" in result.records["interval"]["guarantee"]
    assert certify_run(tmp_path, model, x, y, ["linf"], settings).rows == result.rows
