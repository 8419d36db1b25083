"""Figures 2–5 from cells to pictures and t-tests on small stand-ins; killed and continued; drawn without torch."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from securesgd.errors import InvalidInputError
from securesgd.reproduce.attack_grid import COLUMNS, grid_cells, training_settings
from securesgd.reproduce.attack_plots import line_name
from securesgd.reproduce.reproduce import (
    EXPERIMENTS,
    FIGURES,
    PROFILES,
    estimate_lines,
    plan_experiments,
    recorded_profile,
)
from securesgd.runtime.tables import read_rows
from tests.command_line import run_here

from .small_figures import small_grids

SMALL = [sys.executable, "-m", "tests.reproduce.small_figures"]
ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG"


def reproduce(*arguments):
    with small_grids():
        return run_here("reproduce", *arguments)


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """All five figures in one go."""
    folder = tmp_path_factory.mktemp("whole")
    result = reproduce("all", "--out", folder / "results", "--work", folder / "runs", "--jobs", "1")
    assert result.returncode == 0, result.stderr
    return folder, result


def test_all_five_figures_with_rows_gains_and_environment(whole):
    folder, result = whole
    for name in FIGURES:
        made = folder / "results" / name
        assert (made / "figure.png").read_bytes()[:4] == PNG
        assert json.loads((made / "environment.json").read_text())["profile"] == "quick"
    assert "together about" in result.stderr  # the estimate comes first
    assert result.stderr.index("together") < result.stderr.index("done;")
    rows = read_rows(folder / "results" / "fig2" / "rows.csv")
    assert {(row["protocol"], row["way"]) for row in rows} == {
        ("sound", "uniform"), ("sound", "as-published"), ("sound", "learned"),
        ("as-published", "uniform"), ("as-published", "as-published"),
    }  # fmt: skip
    gains = read_rows(folder / "results" / "fig2" / "gains.csv")
    assert [(g["protocol"], g["way"], g["paper_gain"]) for g in gains] == [
        ("as-published", "as-published", 0.0863), ("sound", "as-published", 0.0863), ("sound", "learned", 0.0863),
    ]  # fmt: skip
    assert all((g["points"], g["seeds"]) == (8, 1) for g in gains)  # four attacks, two sizes
    gains = read_rows(folder / "results" / "fig4" / "gains.csv")
    for protocol in ("as-published", "sound"):
        others = [g["against"] for g in gains if g["protocol"] == protocol]
        assert others == ["adlm", "dp-ibp", "dpsgd", "secure-sgd-agm"]
    (rise,) = read_rows(folder / "results" / "fig5" / "gains.csv")
    assert (rise["ours"], rise["against"]) == ("secure-sgd at epsilon 8", "secure-sgd at epsilon 2")
    assert rise["paper_gain"] == 0.2967


def test_privacy_of_the_lines_is_what_their_ledgers_say(whole):
    """r as published and AdLM void the guarantee; the figure's legend says so."""
    folder, _ = whole
    for row in read_rows(folder / "results" / "fig4" / "rows.csv"):
        void = row["method"] == "adlm" or row["way"] == "as-published"
        assert row["guaranteed"] == (not void)
        assert line_name(row).endswith("(not private)") == void


def test_a_finished_grid_trains_nothing_again(whole):
    folder, _ = whole
    before = {name: (folder / "results" / name / "rows.csv").read_bytes() for name in FIGURES}
    result = reproduce("all", "--out", str(folder / "results"), "--work", str(folder / "none"))
    assert result.returncode == 0
    assert "done;" not in result.stderr
    assert not (folder / "none").exists()
    assert before == {name: (folder / "results" / name / "rows.csv").read_bytes() for name in FIGURES}


def test_without_a_profile_the_one_of_the_rows_is_drawn(tmp_path):
    """Results of the larger profile are not shrunk by a command that does not say so; nor is their date changed."""
    there = tmp_path / "fig1"
    shutil.copytree(ROOT / "results" / "fig1", there)
    record = json.loads((there / "environment.json").read_text()) | {"profile": "paper"}  # as version 0.2.0 called it
    (there / "environment.json").write_text(json.dumps(record))
    assert recorded_profile(there) == "standard"
    assert recorded_profile(tmp_path / "nowhere") is None
    for extra in ([], ["--draw"]):
        assert reproduce("fig1", "--out", str(tmp_path), "--work", str(tmp_path / "runs"), *extra).returncode == 0
        assert json.loads((there / "environment.json").read_text()) == record


@pytest.mark.slow  # `test_grid.py` stops and kills a grid of quick cells
@pytest.mark.parametrize("what", ["fig2", "all"])
def test_killed_twice_it_ends_with_the_same_rows(what, whole, tmp_path):
    """Every cell once, with the numbers of the run that was never stopped (only the seconds differ)."""
    folder, _ = whole
    command = [*SMALL, "reproduce", what, "--out", str(tmp_path / "results"), "--work", str(tmp_path / "runs")]
    table = tmp_path / "results" / "fig2" / "rows.csv"
    for lines in (1, 2):
        process = subprocess.Popen([*command, "--jobs", "1"], cwd=ROOT, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and len(_cells(table)) < lines:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 2 <= len(_cells(table)) < 3
    assert subprocess.run([*command, "--jobs", "2"], cwd=ROOT, capture_output=True, check=False).returncode == 0
    for name in FIGURES if what == "all" else [what]:
        assert _without_seconds(tmp_path / "results" / name / "rows.csv") == _without_seconds(
            folder / "results" / name / "rows.csv"
        )


def _cells(table):
    return {(row["method"], row["way"], row["unit"]) for row in read_rows(table)} if table.exists() else set()


def _without_seconds(table):
    with table.open(newline="") as file:
        return sorted(sorted((k, v) for k, v in row.items() if k != "seconds") for row in csv.DictReader(file))


def test_figures_are_drawn_from_rows_without_torch(tmp_path):
    """As on a machine without torch: importing it raises. The committed rows, not the small ones."""
    drawn = tmp_path / "results"
    for name in FIGURES:
        (drawn / name).mkdir(parents=True)
        for file in ("rows.csv", "environment.json"):
            (drawn / name / file).write_bytes((ROOT / "results" / name / file).read_bytes())
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from securesgd.cli import main\n"
        f"sys.argv = ['securesgd', 'reproduce', 'all', '--draw', '--out', {str(drawn)!r}]\nmain()"
    )
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for name in FIGURES:
        assert (drawn / name / "figure.png").read_bytes()[:4] == PNG
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"versions": {"securesgd": "0.0.9"}}', "was measured with securesgd 0.0.9, this is"),
        ('{"versions": {}}', "does not say which version"),
        ("[", "does not say which version"),
        (None, "does not say which version"),
    ],
)
def test_results_of_another_version_are_refused_and_left_alone(record, reason, tmp_path):
    there = tmp_path / "fig2"
    there.mkdir()
    (there / "rows.csv").write_bytes((ROOT / "results" / "fig2" / "rows.csv").read_bytes())
    if record is not None:
        (there / "environment.json").write_text(record)
    before = {path.name: path.read_bytes() for path in there.iterdir()}
    result = reproduce("fig2", "--out", str(tmp_path), "--work", str(tmp_path / "runs"))
    assert result.returncode == 2
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()[-1:]) == 1
    assert before == {path.name: path.read_bytes() for path in there.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["fig6"], "unknown figure 'fig6': did you mean"),
        (["fig2", "--profile", "quik"], "unknown profile 'quik': did you mean 'quick'?"),
        (["fig2", "--jobs", "0"], "jobs is 0; valid: a whole number from 1 to 1024"),
        (["fig2", "--draw"], "has no rows of the profile 'quick' to draw"),
    ],
)
def test_bad_requests_are_one_line(arguments, reason, tmp_path):
    result = reproduce(*arguments, "--out", str(tmp_path / "results"), "--work", str(tmp_path / "runs"))
    assert result.returncode == 2
    assert reason in result.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_grids_are_well_formed(name, profile):
    """No cell twice, all with the same columns, and an estimate of the time."""
    cells = EXPERIMENTS[name].cells(profile)
    assert len({tuple(cell.values()) for cell in cells}) == len(cells)
    assert len({tuple(cell) for cell in cells}) == 1
    assert EXPERIMENTS[name].minutes[profile] > 0


@pytest.mark.parametrize("name", [name for name in FIGURES if name != "fig1"])
def test_every_cell_is_a_valid_run(name):
    from securesgd.config import run_config

    for profile in PROFILES:
        for cell in EXPERIMENTS[name].cells(profile):
            config = run_config(cell["dataset"], cell["method"], **training_settings(cell), seed=cell["seed"])
            assert cell["steps"] in (None, config.training.steps)  # None: the preset of the method
            assert (cell["way"] is None) == (cell["unit"] is None)
            if cell["way"]:
                assert config.robustness.unit == cell["unit"]
                assert config.way == cell["way"].removesuffix("-from-prior")
            if config.way == "learned":
                assert config.robustness.start == ("prior" if cell["way"].endswith("-prior") else "uniform")
            if cell["epsilon"]:
                assert cell["epsilon"] in (config.training.epsilon, config.adlm and config.adlm.epsilon)


def test_lines_have_no_unknown_columns():
    with pytest.raises(KeyError, match="no such column: colour"):
        grid_cells({}, [{"colour": "red"}], (0,))
    assert list(grid_cells({}, [{}], (1,))[0]) == list(COLUMNS)


@pytest.mark.parametrize("name", FIGURES[1:])
def test_the_standard_grid_can_carry_a_conclusion(name):
    """Three seeds of 500 images, one seed of everything first; the paper's budgets, and more steps for a larger one."""
    cells = EXPERIMENTS[name].cells("standard")
    seeds = [cell["seed"] for cell in cells]
    assert seeds == sorted(seeds)
    assert set(seeds) == {0, 1, 2}
    assert {(cell["examples"], cell["eot"]) for cell in cells} == {(500, 20)}
    if name in ("fig2", "fig3"):
        assert {cell["certify_draws"] for cell in cells} == {2000}
        return
    methods = {cell["method"] for cell in cells}
    assert methods == {"dpsgd", "secure-sgd", "secure-sgd-agm", "adlm", "dp-ibp"}
    epsilons = sorted({cell["epsilon"] for cell in cells})
    assert (epsilons[0], epsilons[-1]) == {"fig4": (2.0, 10.0), "fig5": (0.2, 2.0)}[name]
    work = [
        next(c["steps"] for c in cells if (c["method"], c["epsilon"]) == ("secure-sgd", epsilon))
        for epsilon in epsilons
    ]
    assert work == sorted(work)
    assert len(set(work)) == len(work)
    networks = {cell["network"] for cell in cells if cell["method"] == "dpsgd"}
    assert networks == {"fig4": {"tanh-cnn", "wavelet-linear", "cifar-cnn"}, "fig5": {"tanh-cnn", "mnist-cnn"}}[name]
    assert {cell["votes"] for cell in cells} == {2000}
    (interval, *_) = [cell for cell in cells if cell["method"] == "dp-ibp"]
    assert "ema_decay" not in training_settings(interval)  # the preset's own


def test_only_so_many_seeds_are_measured(tmp_path):
    plans = {
        seeds: plan_experiments("fig5", tmp_path, profile="standard", jobs=1, seeds=seeds)[0] for seeds in (1, 2, None)
    }
    assert plans[1].open * 3 == plans[None].open
    assert plans[1].open * 2 == plans[2].open
    assert f"({EXPERIMENTS['fig5'].minutes['standard']} core-minutes a cell)" in estimate_lines([plans[1]])[0]
    with pytest.raises(InvalidInputError, match="seeds is 0"):
        plan_experiments("fig5", tmp_path, seeds=0)


def test_only_chosen_cells_are_measured(tmp_path):
    def plan(**only):
        return plan_experiments("leaderboard", tmp_path, profile="standard", only=only)[0]

    everything = EXPERIMENTS["leaderboard"].cells("standard")
    assert plan().open == len(everything)
    noisy = [cell for cell in everything if cell["norm"] == "l2" and cell["unit"] in (0.5, 1.0)]
    assert plan(norm=["l2"], unit=["0.5", "1"]).open == len(noisy) < plan(norm=["l2"]).open
    assert plan(norm=["none"]).open == sum(cell["norm"] is None for cell in everything)
    with pytest.raises(InvalidInputError, match="leaderboard has no column 'nrom': did you mean 'norm'"):
        plan(nrom=["l2"])
    with pytest.raises(InvalidInputError, match="leaderboard has no cells with unit=7"):
        plan(unit=["7"])


@pytest.mark.parametrize("word", ["norm", "norm=", "=l2", "norm=l2,"])
def test_a_condition_without_a_value_is_refused(word, tmp_path):
    result = run_here("reproduce", "leaderboard", "--only", word, "--out", str(tmp_path), "--work", str(tmp_path))
    assert result.returncode == 2
    assert f"--only is '{word}'; valid: column=value" in result.stderr
