"""The command line through its real entry point."""

import csv
import json
import os
import subprocess
import sys

import pytest
import typer

from securesgd.cli import app
from securesgd.cli.certify import _progress as certifying
from securesgd.cli.progress import progress_bar
from securesgd.presets import preset
from securesgd.theory.certificates import CERTIFICATE_RULES
from tests.command_line import SECURESGD, run, run_here


def _with_training(settings, changes):
    return settings | {"training": settings["training"] | changes}


def test_noise_table_and_json():
    table = run("noise", "--epsilon", "0.5,4", "--delta", "1e-5")
    assert table.returncode == 0
    assert "7.03183" in table.stdout  # 7.031826… rounded up
    assert "1.08117" in table.stdout
    assert "not proven here" in table.stdout
    rows = json.loads(run("noise", "--epsilon", "4", "--json").stdout)
    assert [row["mechanism"] for row in rows] == ["classic", "extended", "analytic"]
    assert rows[0]["sigma"] is None
    assert "epsilon <= 1 only" in rows[0]["note"]
    assert rows[2]["sigma"] == pytest.approx(1.08116, abs=1e-4)


def test_inverse_questions_round_trip():
    (row,) = json.loads(
        run("noise", "--epsilon", "2", "--sensitivity", "3", "--mechanism", "analytic", "--json").stdout
    )
    sigma = repr(row["sigma"])
    common = ("--sigma", sigma, "--sensitivity", "3", "--mechanism", "analytic", "--json")
    (epsilon,) = json.loads(run("noise", *common).stdout)
    (delta,) = json.loads(run("noise", "--epsilon", "2", *common).stdout)
    assert epsilon["epsilon"] == pytest.approx(2, rel=1e-8)
    assert delta["delta"] == pytest.approx(1e-5, rel=1e-8)


def test_reproduce_figure_one(tmp_path):
    result = run_here("reproduce", "fig1", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "fig1"
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    rows = list(csv.DictReader((folder / "rows.csv").open()))
    at_one = {row["mechanism"]: float(row["sigma"]) for row in rows if float(row["epsilon"]) == 1}
    assert at_one == pytest.approx({"classic": 4.8448, "extended": 4.8542, "analytic": 3.7306}, abs=1e-4)
    beyond = [row for row in rows if row["mechanism"] == "classic" and float(row["epsilon"]) > 1]
    assert beyond
    assert all(row["sigma"] == "" for row in beyond)
    assert "versions" in json.loads((folder / "environment.json").read_text())
    assert run_here("reproduce", "fig1", "--out", str(tmp_path)).returncode == 0  # again over its own files


def test_a_foreign_file_is_not_overwritten(tmp_path):
    (tmp_path / "fig1").mkdir()
    (tmp_path / "fig1" / "rows.csv").write_text("my,own\n1,2\n")
    result = run_here("reproduce", "fig1", "--out", str(tmp_path))
    assert result.returncode == 2
    assert (tmp_path / "fig1" / "rows.csv").read_text() == "my,own\n1,2\n"


@pytest.mark.parametrize("size", ["small", pytest.param("whole", marks=pytest.mark.slow)])
def test_demo_writes_into_runs(size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if size == "small":
        less = {"steps": 20, "copies": 1, "accountant": "rdp"}
        monkeypatch.setattr(
            "securesgd.config.preset", lambda *names, **fit: _with_training(preset(*names, **fit), less)
        )
        monkeypatch.setattr("securesgd.cli.demo._ATTACKED", 10)
    result = run_here("demo")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs" / "demo" / "fig1" / "figure.png").exists()
    for name in ("certificates.csv", "attacks.csv", "redistribution.png"):
        assert (tmp_path / "runs" / "demo" / "digits" / name).exists()
    assert "Not everything is here" not in (tmp_path / "runs" / "demo" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["noise"], "give --epsilon"),
        (["noise", "--epsilon", "0"], "epsilon is 0; valid: a finite number > 0"),
        (["noise", "--epsilon", "x"], "--epsilon must be a number or numbers like 0.5,1,4, got 'x'"),
        (["noise", "--epsilon", "nan"], "epsilon is nan; valid: a"),
        (["noise", "--epsilon", "1", "--delta", "1"], "delta is 1; valid: a number in (0, 1)"),
        (["noise", "--epsilon", "2", "--mechanism", "classic"], "0 < epsilon <= 1 only, got epsilon = 2"),
        (["noise", "--epsilon", "2", "--mechanism", "clasic"], "did you mean 'classic'"),
        (["noise", "--epsilon", "2", "--sensitivity", "-1"], "sensitivity is -1; valid: a finite number > 0"),
        (
            ["noise", "--epsilon", "2", "--sigma", "1", "--delta", "0.1"],
            "give two of epsilon, delta and sigma",
        ),
        (["noise", "--sigma", "0"], "sigma is 0; valid: a finite number > 0"),
        (["reproduce", "fig9"], "unknown figure 'fig9'"),
        (["nois"], "No such command 'nois'"),
        (["noise", "--bogus"], "No such option: --bogus"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_here(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["noise"], ["reproduce"], ["demo"]])
def test_help_has_no_leftovers(arguments):
    result = run(*arguments, "--help")
    assert result.returncode == 0
    assert "Usage: securesgd" in result.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["train", "--epsilom", "1"], ["nois"]], ids=" ".join
)
def test_help_and_typos_load_nothing_heavy(arguments):
    """So that they answer in less than a second; torch alone takes two."""
    heavy = ["torch", "dp_accounting", "matplotlib", "scipy", "sklearn", "PIL", "jinja2"]
    code = f"""
import sys
from securesgd.cli import main
sys.argv = ["securesgd", *{arguments}]
try:
    main()
except SystemExit as end:
    status = end.code or 0
print("loaded", [name for name in {heavy} if name in sys.modules], status)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == f"loaded [] {0 if '--help' in arguments else 2}"


def test_bash_completes_commands_and_options(tmp_path):
    """As `--install-completion` sets it up for a new shell, in a home folder of its own."""
    home = {"HOME": str(tmp_path), "PATH": f"{SECURESGD.parent}:{os.environ['PATH']}"}
    install = ["bash", "-c", "securesgd --install-completion; exit $?"]  # which shell it is, the command sees by itself
    subprocess.run(install, env=os.environ | home, capture_output=True, check=True)
    for words, expected in (("securesgd cer", "certify"), ("securesgd certify --dra", "--draws")):
        script = f"source ~/.bashrc; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        script += "_securesgd_completion securesgd; echo ${COMPREPLY[@]}"
        answer = subprocess.run(
            ["bash", "-c", script], env=os.environ | home, capture_output=True, text=True, check=True
        )
        assert answer.stdout.split() == [expected], answer.stderr


def test_the_help_of_certify_names_every_rule():
    """It is written out there, so that the help need not load what computes them."""
    assert f"Shown: {', '.join(CERTIFICATE_RULES)} or all" in " ".join(
        run_here("certify", "--help").stdout.replace("│", " ").split()
    )


def progress_lines(monkeypatch, capsys, seconds, rank="0"):
    """Standard error of a task of 100 steps, one every so many seconds."""
    now = [0.0]
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("rich.console.monotonic", lambda: now[0])
    with progress_bar("step {task.completed:.0f}/{task.total:.0f}", "{task.description}", total=100) as (bar, task):
        for step in range(1, 101):
            now[0] += seconds
            bar.update(task, completed=step, description=f"epsilon {step / 100:.2f}")
    return capsys.readouterr().err.splitlines()


def test_the_speed_of_a_certification_is_shown_once_it_is_known(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("rich.console.monotonic", lambda: now[0])
    with certifying("bounding") as show:
        for done in range(10, 101, 10):  # a speed takes two looks at the clock
            now[0] += 16
            show(done, 100)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "example 20/100 (20 %, about 2 min left)"
    assert " 0.6 examples/s " in last


def test_progress_is_plain_lines_when_it_is_no_terminal(monkeypatch, capsys):
    lines = progress_lines(monkeypatch, capsys, 1.0)
    assert lines == [  # after two seconds, then every half a minute
        "step 2/100 epsilon 0.02 (2 %)", "step 32/100 epsilon 0.32 (32 %, about 68 s left)",
        "step 62/100 epsilon 0.62 (62 %, about 38 s left)", "step 92/100 epsilon 0.92 (92 %, about 8 s left)",
    ]  # fmt: skip
    slow = progress_lines(monkeypatch, capsys, 10.0)
    assert len(slow) == 33
    assert slow[0] == "step 2/100 epsilon 0.02 (2 %)"  # the first with a time that remains, which is a guess yet
    assert slow[1:3] == [
        "step 5/100 epsilon 0.05 (5 %, about 16 min left)",
        "step 8/100 epsilon 0.08 (8 %, about 15 min left)",
    ]
    assert progress_lines(monkeypatch, capsys, 20.0)[1] == "step 4/100 epsilon 0.04 (4 %, about 32 min left)"
    assert len(progress_lines(monkeypatch, capsys, 60.0)) == 100
    assert not progress_lines(monkeypatch, capsys, 0.01)  # over within two seconds
    assert not progress_lines(monkeypatch, capsys, 1.0, rank="1")


COMPUTES_ELSEWHERE = {
    "config": "writes settings", "noise": "arithmetic", "data": "reads data", "report": "reads records",
    "statement": "reads the ledger", "sign": "reads files", "export": "writes the network for another program",
    "reproduce": "its rows are of the CPU, one process each", "demo": "made for a machine without a GPU",
}  # fmt: skip
"""Commands without a network to be computed, or that compute on the CPU by intent."""


def test_every_command_that_computes_takes_a_device():
    commands = typer.main.get_command(app).commands
    without = {
        name for name, command in commands.items() if "--device" not in [o for p in command.params for o in p.opts]
    }
    assert without == set(COMPUTES_ELSEWHERE)
