"""`securesgd statement`: reads any run folder, writes nothing, and loads no torch."""

import hashlib
import json
import subprocess
import sys

import jsonschema
import pytest

from securesgd import load_run
from securesgd.privacy import Ledger, SampledGaussianSteps, read_ledger, run_statement, statement_schema
from tests.command_line import run_here


def digests(folder):
    return {
        path.relative_to(folder): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_finished_run_in_words(copied_run):
    before = digests(copied_run)
    result = run_here("statement", copied_run)
    assert result.returncode == 0, result.stderr
    assert digests(copied_run) == before
    statement = read_ledger(copied_run / "ledger.jsonl").statement
    for part in ("unit of privacy", "Poisson", "mu of Gaussian DP", "0.1 % false positives", "epsilon of 10 examples",
                 "not covered", "metrics.jsonl", "AES-128-CTR", "RDP of dp-accounting", "version of torch", "finished",
                 "a fixed seed", "infinity ("):  # fmt: skip
        assert part in result.stdout, part
    assert statement.in_words in result.stdout


def test_a_finished_run_as_json(copied_run):
    record = json.loads(run_here("statement", copied_run, "--json", "--group", "3", "--group", "2").stdout)
    jsonschema.Draft202012Validator(statement_schema()).validate(record)
    assert [group["examples"] for group in record["groups"]] == [2, 3]
    assert (record["guaranteed"], record["finished"], record["charged_steps"]) == (False, True, 2)
    environment = json.loads((copied_run / "environment.json").read_text())
    assert record["versions"]["python"] == environment["python"]
    assert record["versions"]["torch"] == environment["versions"]["torch"]
    assert record["accounted_epsilon"] == read_ledger(copied_run / "ledger.jsonl").statement.accounted_epsilon


def test_a_run_has_the_verb(tiny_run):
    assert load_run(tiny_run).statement(groups=(4,)) == run_statement(tiny_run, groups=(4,))


def test_an_unfinished_run(tmp_path):
    with Ledger.create(tmp_path / "ledger.jsonl", delta=1e-5, target_epsilon=3.0) as ledger:
        steps = SampledGaussianSteps(sampling_rate=0.01, noise_multiplier=1.0, steps=40)
        ledger.reserve(steps, first_step=0, stream="a")
        result = run_here("statement", tmp_path)  # while another process holds the ledger
    assert result.returncode == 0, result.stderr
    assert "not finished" in result.stdout
    record = json.loads(run_here("statement", tmp_path, "--json").stdout)
    assert (record["finished"], record["charged_steps"], record["guaranteed"]) == (False, 40, True)
    assert record["versions"]["torch"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--group", "1"), "group is 1; valid: an integer from 2 to 100"),
        (("--group", "1000"), "group is 1000; valid: an integer from 2 to 100"),
        (("--group", "two"), "'two'"),
    ],
)
def test_a_wrong_group(tiny_run, words, message):
    result = run_here("statement", tiny_run, *words)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_folder_without_a_ledger(tmp_path):
    result = run_here("statement", tmp_path)
    assert result.returncode == 2
    assert "has no ledger.jsonl; valid: the folder of a run" in result.stderr


def test_a_ledger_of_other_weights(copied_run):
    lines = (copied_run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (copied_run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    result = run_here("statement", copied_run)
    assert result.returncode == 2
    assert "is not the ledger that model.safetensors was trained with" in result.stderr


@pytest.mark.parametrize("name", ["ledger.jsonl", "model.safetensors", "environment.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"versions": 3}', b"[]"])
def test_a_damaged_file_is_one_line(copied_run, name, content):
    (copied_run / name).write_bytes(content)
    result = run_here("statement", copied_run)
    assert result.returncode == 2
    assert name in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_torch_is_not_loaded(tiny_run):
    code = "import sys; from securesgd.privacy import run_statement; run_statement(sys.argv[1], groups=(2,)).json()\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, tiny_run], check=False).returncode == 0
