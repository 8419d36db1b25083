"""Every example of `--help`, as docs/reference/cli.md prints it, run on data and runs like those it names.

Options that come after the printed ones make it short (`SMALL` of test_pages.py); what is not run says why.
"""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

import securesgd as ss
from securesgd.config import run_config
from securesgd.run_training import train_run
from tests.command_line import run_here
from tests.markdown import blocks
from tests.test_pages import PAGES, run_command

PAGE = "docs/reference/cli.md"
EXAMPLES = [
    shlex.join(words) for block in blocks(PAGES[PAGE]) if block.kind == "commands" for words in block.commands()
]
NOT_RUN = {
    "securesgd serve runs/a": "it serves until it is stopped; tests/serve starts it",
    "securesgd data fetch mnist": "it downloads; tests/data/test_fetch.py serves such files itself",
    "securesgd reproduce all --profile quick": "it takes hours; tests/reproduce runs each experiment with a small grid",
    "securesgd audit --config audit.toml --self-test": "minutes; tests/audit/test_audit_command.py, with few canaries",
}
# Which of the workshop's runs stands at `runs/a`, where it is not the tiny run with noise.
RUN_A = {
    "securesgd certify runs/a --family": "interval",
    "securesgd check runs/a": "people",
    "securesgd train --resume": "unfinished",
}
TABLE = """target = "diagnosis"
classes = ["benign", "malignant"]
[columns.age]
minimum = 0
maximum = 120
[columns.dose]
minimum = 0
maximum = 5
[columns.pulse]
minimum = 20
maximum = 220
"""
INTERVAL = ("--method", "dp-ibp", "--set", "steps=2", "--set", "batch_size=32", "--set", "accountant=rdp")


def stop(report):
    if report.step == 7:
        raise KeyboardInterrupt


def succeed(*words):
    result = run_here(*words)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, tiny_run):
    """A folder with everything the examples name; `stock` has runs that an example may find at `runs/a`."""
    folder = tmp_path_factory.mktemp("workshop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows = [f"{i % 90},{i % 5},{60 + i % 70},{('benign', 'malignant')[i % 3 == 0]}" for i in range(200)]
        for name in ("people", "public", "patients", "data/patients"):
            Path(name).parent.mkdir(exist_ok=True)
            Path(f"{name}.csv").write_text("\n".join(["age,dose,pulse,diagnosis", *rows]) + "\n")
            Path(f"{name}.schema.toml").write_text(TABLE)
        for kind, level in (("cat", 40), ("dog", 200)):
            for i in range(30):
                Path("photos", kind).mkdir(parents=True, exist_ok=True)
                Image.new("L", (20 + i % 2, 16), level + i % 20).save(Path("photos", kind, f"{i}.png"))
        Path("photos", "cat", "broken.png").write_text("no picture")
        Path("more").mkdir()
        for path in ("new.png", "more/0.png"):
            Image.new("L", (64, 64), 100).save(path)
        np.savez("images.npz", x=np.zeros((3, 8, 8), np.uint8))
        pyarrow.parquet.write_table(pyarrow.csv.read_csv("people.csv"), "people.parquet")
        succeed("train", "--dataset", "digits", "--out", "stock/interval", *INTERVAL)
        succeed("train", "--dataset", "data/patients.csv", "--target", "diagnosis", "--out", "stock/people", *INTERVAL)
        succeed("certify", "stock/people")
        resized = ("--resize", "64x64", "--skip-bad", "--set", "test_share=0.3")
        succeed("train", "--dataset", "photos", *resized, "--out", "runs/photos", *INTERVAL)
        settings = {"steps": 20, "batch_size": 32, "block_steps": 5, "checkpoint_steps": 5, "accountant": "rdp"}
        config = run_config("digits", "dpsgd", **settings)
        with pytest.raises(ss.TrainingInterrupted):
            train_run(config, "stock/unfinished", on_step=stop)
        for name in ("people", "table"):
            shutil.copytree("stock/people", f"runs/{name}")
    return folder


def test_what_is_not_run_is_on_the_page_and_says_why():
    assert set(NOT_RUN) <= set(EXAMPLES)
    assert all(any(example.startswith(start) for example in EXAMPLES) for start in RUN_A)


@pytest.mark.slow
@pytest.mark.parametrize("example", [example for example in EXAMPLES if example not in NOT_RUN], ids=str)
def test_an_example_of_the_help_runs(example, workshop, tiny_run, tmp_path, monkeypatch):
    place = Path(shutil.copytree(workshop, tmp_path / "place"))
    monkeypatch.chdir(place)
    words = shlex.split(example)
    stock = next((name for start, name in RUN_A.items() if example.startswith(start)), None)
    if stock is not None:
        shutil.copytree(place / "stock" / stock, "runs/a")
    if words[1] in ("train", "tune") and "--resume" not in words:
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    if words[1] == "reproduce":
        shutil.copytree(PAGES[PAGE].parents[2] / "results" / "fig3", "results/fig3")
    if words[:3] == ["securesgd", "sign", "runs/a"]:
        run_command(["securesgd", "sign", "--new-key", "me.key"], tiny_run)
    run_command(words, tiny_run)
    if stock == "unfinished":
        assert not Path("runs/a", "secret.json").exists()  # finished
        assert ss.load_run("runs/a").test_accuracy > 0
