"""`securesgd attack` through its real entry point, on a small run."""

import csv
import json

import numpy as np
import pytest

from securesgd.config import run_config
from securesgd.run_training import train_run
from tests.command_line import run_here

QUICK = ("--examples", "30", "--eot", "4", "--steps", "3", "--draws", "100", "--certify-draws", "200", "--no-probes")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attack") / "run"
    train_run(run_config("digits", "secure-sgd", steps=60, copies=1, accountant="rdp"), folder)
    return folder


def rows(folder):
    return list(csv.DictReader((folder / "attacks.csv").open()))


def test_attacks_add_up_in_the_table_and_nothing_is_lost(trained):
    first = run_here("attack", str(trained), "--attack", "fgsm", "--budget", "0.05,0.2", *QUICK)
    assert first.returncode == 0, first.stderr
    assert "fgsm" in first.stdout
    assert (trained / "attacks.png").read_bytes()[:4] == b"\x89PNG"
    before = rows(trained)
    assert len(before) == 60
    assert {row["budget"] for row in before} == {"0.05", "0.2"}
    second = run_here("attack", str(trained), "--attack", "mim", "--budget", "0.2", *QUICK, "--json")
    assert second.returncode == 0, second.stderr
    record = json.loads(second.stdout)
    assert record["sandwich_holds"]
    (cell,) = record["cells"].values()
    assert cell["attack"]["attack"] == "mim"
    assert cell["summary"]["examples"] == 30
    accuracy = cell["summary"]["accuracy"]
    assert accuracy["lower"] <= accuracy["share"] <= accuracy["upper"]
    assert rows(trained)[:60] == before
    assert len(rows(trained)) == 90
    again = run_here("attack", str(trained), "--attack", "mim", "--budget", "0.2", *QUICK)
    assert "1 of 1 were measured before and kept; --again measures them anew" in again.stdout
    assert len(rows(trained)) == 90


def test_all_is_the_papers_four_and_images_are_kept_on_request(trained):
    from securesgd.attacks.cells import load_images

    result = run_here("attack", str(trained), "--budget", "0.1", "--norm", "l2", *QUICK, "--keep-images", "--json")
    assert result.returncode == 0, result.stderr
    cells = json.loads(result.stdout)["cells"]
    assert [cell["attack"]["attack"] for cell in cells.values()] == ["fgsm", "ifgsm", "mim", "madry"]
    index, images = load_images(trained, next(iter(cells)))
    assert index.tolist() == list(range(30))
    assert images.shape == (30, 1, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attack", "fgms"], "unknown attack 'fgms': did you mean 'fgsm'"),
        (["--norm", "l_inf"], "unknown norm 'l_inf': did you mean 'linf'"),
        (["--budget", "0.1,-1"], "budget must be finite and > 0, got -1"),
        (["--examples", "-3"], "examples is -3; valid: an integer from 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_two(trained, arguments, message):
    before = sorted(path.name for path in trained.iterdir())
    result = run_here("attack", str(trained), *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert sorted(path.name for path in trained.iterdir()) == before


def test_an_unfinished_run_is_refused(tmp_path, trained):
    (tmp_path / "config.toml").write_text((trained / "config.toml").read_text())
    result = run_here("attack", str(tmp_path))
    assert result.returncode == 2
    assert "is not finished; resume it with" in result.stderr
    assert run_here("attack", str(tmp_path / "none")).returncode == 2


def test_data_that_do_not_fit_the_model_are_refused(tmp_path):
    data, folder = tmp_path / "own.npz", tmp_path / "run"
    generator = np.random.default_rng(0)

    def write(side):
        names = {"x_train": 40, "x_test": 12}
        images = {name: generator.random((n, 1, side, side), dtype=np.float32) for name, n in names.items()}
        labels = {"y_train": np.arange(40) % 3, "y_test": np.arange(12) % 3}
        np.savez(data, **images, **labels)

    write(8)
    train_run(run_config(str(data), "sgd", steps=2, batch_size=8), folder)
    assert run_here("attack", str(folder), "--attack", "fgsm").returncode == 0
    write(12)
    changed = run_here("attack", str(folder), "--attack", "fgsm")
    assert changed.returncode == 2
    assert "has other test examples than when" in changed.stderr
    result = run_here("attack", str(folder), "--attack", "fgsm", "--dataset", str(data))
    assert result.returncode == 2
    assert "test inputs have shape [1, 12, 12]; valid: [1, 8, 8]" in result.stderr
    assert result.stderr.count("\n") == 1
