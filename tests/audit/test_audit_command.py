"""`securesgd audit` through its real entry point: audit.json, its verdict, the self-test, and what is refused."""

import json
import shutil

import pytest

from securesgd.audit.record import AUDIT, audit_in_words, audit_summary, read_audit
from securesgd.config import run_config
from securesgd.errors import DamagedFileError
from tests.command_line import run_here

FEW = ("--canaries", "400")


@pytest.fixture
def run(tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder)
    return folder


def test_an_audit_is_kept_in_the_run_folder_and_touches_nothing_else(run):
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    result = run_here("audit", run, *FEW)
    assert result.returncode == 0, result.stderr
    assert "does not contradict the claimed epsilon" in result.stdout
    record = read_audit(run)
    assert record["white_box"]["canaries"] == 420
    assert record["private"] is False
    assert audit_in_words(record) in " ".join(result.stdout.split())
    rows = audit_summary(record)
    assert [row["epsilon_lower_bound"] for row in rows] == [
        record[box][name] for box in ("white_box", "black_box") for name in ("tradeoff", "simple")
    ]
    after = {path.name: path.read_bytes() for path in run.iterdir()}
    assert {name: content for name, content in after.items() if name != AUDIT} == before
    again = run_here("audit", run, *FEW, "--json")
    assert json.loads(again.stdout)["coins_sha256"] == read_audit(run)["coins_sha256"] != record["coins_sha256"]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "audit.toml"
    settings = {"delta": 1e-5, "network": "mlp", "batch_size": 750, "steps": 2, "accountant": "rdp"}
    path.write_text(run_config("digits", "dpsgd", epsilon=8.0, **settings).to_toml())
    return path


def test_a_broken_training_is_exit_code_1(config):
    words = ("audit", "--config", config, "--set", "epsilon=1", "--canaries", "2000", "--seed", "0")
    result = run_here(*words, "--sabotage", "no-clipping")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "contradicts the claimed epsilon 1 at delta" in result.stdout
    null = run_here(*words, "--null", "--json")
    assert null.returncode == 0, null.stderr
    assert json.loads(null.stdout)["epsilon_lower_bound"] == 0


def test_the_self_test_says_which_sabotage_was_not_caught(config):
    """With few canaries half the noise is not: exit code 1."""
    words = ("audit", "--config", config, "--set", "epsilon=1", "--canaries", "2000", "--seed", "0", "--self-test")
    result = run_here(*words)
    assert result.returncode == 1, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    for name in ("no-clipping", "noise-reused", "noise-twice", "biases-unclipped", "mean-clipping"):
        assert lines[name].rstrip().endswith("claim is false"), result.stdout
    for name in ("as-shipped", "null"):
        assert lines[name].rstrip().endswith("claim holds"), result.stdout
    assert lines["half-noise"].rstrip().endswith("claim holds: wrong")


def test_only_audits_of_the_training_as_it_is_are_kept(run):
    assert run_here("audit", run, *FEW, "--null").returncode == 0
    assert read_audit(run) is None


def test_a_damaged_audit_is_noticed(run):
    (run / AUDIT).write_text('{"format": 1}')
    with pytest.raises(DamagedFileError, match="audit the run again"):
        read_audit(run)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give the folder of a run, or --config FILE"),
        (("RUN", "--config", "x.toml"), "and not both"),
        (("RUN", "--set", "steps=3"), "--set is for --config"),
        (("RUN", "--canaries", "3"), "weights is 3"),
        (("RUN", "--sabotage", "half"), "unknown sabotage 'half'"),
        (("RUN", "--failure-prob", "2"), "failure_prob is 2.0"),
        (("RUN", "--seed", "-1"), "seed is -1"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(run, words, message):
    result = run_here("audit", *(run if word == "RUN" else word for word in words))
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
