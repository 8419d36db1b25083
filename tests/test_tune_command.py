"""`securesgd tune`: what it prints and leaves, and its mistakes in one line."""

import re

import pytest

from tests.command_line import run_here

OPTIONS = ("--dataset", "digits", "--method", "dpsgd", "--set", "steps=2", "--set", "batch_size=32",
           "--set", "noise_multiplier=1.5", "--network", "tests.test_tuning:small_network")  # fmt: skip


OPTIONS = ("--dataset", "digits", "--method", "dpsgd", "--set", "steps=2", "--set", "batch_size=32",
           "--set", "noise_multiplier=1.5", "--network", "tests.test_tuning:small_network")  # fmt: skip
HELD_OUT = ("--set", "holdout=200")


def test_the_command(tmp_path):
    out = tmp_path / "run"
    words = ("tune", *OPTIONS, *HELD_OUT, "--try", "learning_rate=0.1,0.5", "--try", "momentum=0,0.5", "--out", out,
             "--trials-mean", "2")  # fmt: skip
    result = run_here(*words)
    assert result.returncode == 0, result.stderr
    assert "private: epsilon covers the chosen run alone" in result.stderr
    assert re.search(r"^trial 1 of \d+: learning_rate=0\.[15] momentum=0(\.5)?$", result.stderr, re.M)
    assert "score" not in result.stderr
    assert "chosen: learning_rate=0." in result.stdout
    assert "RDP accountant" in result.stdout
    assert run_here(*words).returncode == 2
    again = run_here(*words, "--resume")
    assert "is finished already" in again.stdout
    assert run_here("predict", out, "--help").returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*HELD_OUT, "--try", "learning_rate"), "--try takes key=value,value"),
        ((*HELD_OUT, "--try", "learning_rate=1,,2"), "--try takes key=value,value"),
        ((*HELD_OUT, "--try", "steps=1", "--try", "steps=2"), "given twice"),
        ((*HELD_OUT, "--try", "learning_rate=a"), "learning_rate is 'a'"),
        ((*HELD_OUT, "--try", "noise_multiplier=1"), "cannot be searched"),
        ((*HELD_OUT, "--try", "steps=1,2", "--trials-mean", "0.5"), "mean is 0.5"),
        ((*HELD_OUT, "--try", "steps=1,2", "--trials-shape", "-1"), "trials_shape is -1"),
        ((*HELD_OUT, "--try", "steps=1,2", "--score-noise", "0"), "score_noise is 0"),
        ((*HELD_OUT, "--try", "steps=1,2", "--resume"), "no search to resume"),
        (("--try", "steps=1,2"), "one of them"),
        (("--try", "steps=1,2", "--validate-on", "nothing.npz"), "nothing.npz"),
        (("--try", "steps=1,2", "--set", "method=sgd"), "use --method"),
        ((*HELD_OUT,), "--try"),
    ],
)
def test_a_mistake_is_one_line(words, message, tmp_path):
    result = run_here("tune", *OPTIONS, *words, "--out", tmp_path / "run")
    assert result.returncode == 2
    assert message in result.stderr
    assert len([line for line in result.stderr.splitlines() if "error" in line]) == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()
