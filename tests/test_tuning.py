"""A search of hyper-parameters inside the budget: its cost, its folder, and what is left after a kill at any point."""

import json
import re
import signal

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import rdp
from scipy import stats
from torch import nn

import securesgd as ss
from securesgd import tuning, tuning_folder
from securesgd.config import run_config
from securesgd.data.load import load_data
from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.privacy import epsilon_spent, read_ledger
from securesgd.privacy.repeat_and_select import trial_count
from securesgd.report.run_record import read_run
from securesgd.runtime.key_stream import KeyStream
from securesgd.runtime.randomness import Randomness
from securesgd.tuning import tune
from securesgd.tuning_folder import TuningFolder
from securesgd.tuning_search import Score, candidates, search_event, validation_score
from tests.forked import run_forked

TRIES = {"learning_rate": [0.1, 0.5, 2.0]}
TINY = {"steps": 2, "batch_size": 32, "holdout": 200, "network": "tests.test_tuning:small_network"}
DIGITS = load_data("digits", holdout=200)


def small_network(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def config(**changes):
    return run_config("digits", "dpsgd", **TINY | {"noise_multiplier": 1.5} | changes)


class KeysInOrder:
    """Secret keys replaced by a fixed sequence, so that a search can be compared with one that was not stopped."""

    def __init__(self, start):
        self.next = start

    def __call__(self):
        self.next += 1
        return Randomness(KeyStream(b"keys of the test").child(str(self.next)).words(2).tobytes())


@pytest.fixture
def three_trials(monkeypatch):
    """Let every search of this test have three trials, with the same keys: call it again to start anew."""

    def begin():
        start = next(
            start
            for start in range(0, 10_000, 100)
            if trial_count(_event(), KeyStream(KeysInOrder(start)().key).child("number of trials")) == 3
        )
        keys = KeysInOrder(start)
        monkeypatch.setattr(Randomness, "secret", classmethod(lambda cls: keys()))

    begin()
    return begin


def _event():
    chosen = config()
    score = validation_score(chosen, DIGITS, None, 10.0)
    return search_event(chosen, candidates(chosen, TRIES), DIGITS, score, mean=5.0, shape=1.0)


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_search_leaves_the_run_of_one_trial_at_the_cost_of_all(tmp_path, three_trials):
    out, reports = tmp_path / "run", []
    chosen = config(noise_multiplier=None, epsilon=4.0, delta=1e-4)
    run = tune(chosen, out=out, tries=TRIES | {"batch_size": [16, 32]}, trials_mean=4, on_trial=reports.append)
    step = dp_accounting.PoissonSampledDpEvent(
        32 / 1300, dp_accounting.GaussianDpEvent(run.config.training.noise_multiplier)
    )
    trial = [dp_accounting.SelfComposedDpEvent(step, 2), dp_accounting.GaussianDpEvent(10.0)]
    accountant = rdp.RdpAccountant(None, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.ComposedDpEvent(trial), 4, 1))
    assert run.privacy.epsilon == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-12)
    assert 4 - 1e-2 < run.privacy.epsilon <= 4
    assert run.privacy.accountant == "rdp"
    assert run.privacy.guaranteed

    best = max(reports, key=lambda report: report.score)
    assert {name: getattr(run.config.training, name) for name in best.values} == best.values
    assert {path.name for path in out.iterdir()} == {
        "MODEL_CARD.md", "config.toml", "environment.json", "ledger.jsonl", "metrics.jsonl", "model.json",
        "model.safetensors",
    }  # fmt: skip
    for line in (out / "metrics.jsonl").read_text().splitlines():
        assert "held_out_accuracy" not in line
        assert json.loads(line)["epsilon"] == run.privacy.epsilon
    times = {
        read_ledger(out / "ledger.jsonl").header.created,
        json.loads((out / "environment.json").read_text())["made"],
    }
    assert len(times) == 1  # how long it took would tell how many trials there were
    record = read_run(out)
    assert record.doubts == []
    assert record.statement["epsilon"] == run.privacy.epsilon
    again = ss.load_run(out, network="tests.test_tuning:small_network")
    assert again.predict(DIGITS.test_inputs[:2])[0].label in range(10)
    assert "best of a random number of trials (4 on average)" in again.report().read_text()
    with pytest.raises(InvalidInputError, match="not empty"):
        tune(chosen, out=out, tries=TRIES)
    assert tune(chosen, out=out, tries=TRIES, resume=True).privacy == run.privacy


class Killed(BaseException):
    """As a kill: nothing in the package catches it."""


def _kill(*_, **__):
    raise Killed


def _after(function, calls=1):
    left = [calls]

    def run(*arguments, **options):
        left[0] -= 1
        result = function(*arguments, **options)
        if left[0] == 0:
            raise Killed
        return result

    return run


KILLS = {
    "a trial has ended, its score is not kept": (tuning, "train_run", lambda f: _after(f, 2)),
    "before the line of the ledger": (tuning_folder.Ledger, "record", lambda f: _kill),
    "the ledger is made anew": (TuningFolder, "_copy", lambda f: _kill),
    "before the weights": (tuning_folder, "save_tensors", lambda f: _kill),
    "before model.json": (tuning_folder, "read_json", lambda f: _only(f, "model.json")),
    "before the model card": (tuning_folder, "write_model_card", lambda f: _kill),
    "while the trials are removed": (tuning_folder.shutil, "rmtree", lambda f: _after(f)),
}


def _only(function, name):
    return lambda path: _kill() if path.name == name else function(path)


@pytest.fixture(scope="module")
def whole_search(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "run"


@pytest.mark.parametrize("point", KILLS)
def test_a_search_that_was_killed_ends_as_one_that_was_not(point, tmp_path, monkeypatch, three_trials, whole_search):
    if not whole_search.exists():
        tune(config(), out=whole_search, tries=TRIES, loaded=DIGITS)
        three_trials()
    out, reports = tmp_path / "run", []
    with monkeypatch.context() as patch:
        place, name, change = KILLS[point]
        patch.setattr(place, name, change(getattr(place, name)))
        with pytest.raises(Killed):
            tune(config(), out=out, tries=TRIES, loaded=DIGITS)
    if point == "before the line of the ledger":
        assert not out.exists()  # nothing was released
        return
    if point == "a trial has ended, its score is not kept":
        assert (out / "tuning.json").stat().st_mode & 0o077 == 0
        assert (out / "trials").stat().st_mode & 0o077 == 0
        assert len(read_ledger(out / "ledger.jsonl").records) == 1
        with pytest.raises(DamagedFileError, match="not a run folder"):
            ss.load_run(out)
        for changes, what in (({"tries": {"learning_rate": [1.0]}}, "tries"), ({"trials_mean": 6.0}, "trials_mean")):
            with pytest.raises(InvalidInputError, match=f"other settings .*{what}"):
                tune(config(), out=out, resume=True, loaded=DIGITS, **{"tries": TRIES} | changes)
        other = load_data("digits", holdout=200, seed=1)
        with pytest.raises(InvalidInputError, match="the data are not those"):
            tune(config(), out=out, tries=TRIES, resume=True, loaded=other)
    tune(config(), out=out, tries=TRIES, resume=True, loaded=DIGITS, on_trial=reports.append)
    assert not reports or [report.trials for report in reports] == [3, 3, 3]
    ends = [files(folder) for folder in (out, whole_search)]
    assert ends[0].keys() == ends[1].keys()
    assert ends[0]["config.toml"] == ends[1]["config.toml"]
    weights = [
        ss.load_run(f, network="tests.test_tuning:small_network").model.state_dict() for f in (out, whole_search)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert read_run(out).doubts == []


CHILD = """
import os, signal, sys
from tests.test_tuning import DIGITS, TRIES, config, tune
from securesgd.tuning_folder import TuningFolder
kept = TuningFolder.write_score
def write_score(self, *arguments):
    kept(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)
TuningFolder.write_score = write_score
tune(config(), out=sys.argv[1], tries=TRIES, loaded=DIGITS)
"""


@pytest.mark.slow
def test_a_real_kill_loses_nothing(tmp_path):
    out = tmp_path / "run"
    child = run_forked(CHILD, out)
    assert child.returncode == -signal.SIGKILL, child.stderr
    folder, reports = TuningFolder(out), []
    trials = trial_count(folder.event, folder.stream.child("number of trials"))
    first = json.loads((out / "trials" / "0" / "score.json").read_text())["score"]
    paid = read_ledger(out / "ledger.jsonl").statement.epsilon
    run = tune(config(), out=out, tries=TRIES, resume=True, loaded=DIGITS, on_trial=reports.append)
    assert [report.trials for report in reports] == [trials] * trials
    assert reports[0].score == first
    assert run.privacy.epsilon == paid


def test_a_search_that_fails_before_a_release_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise InvalidInputError("no such data")

    monkeypatch.setattr(tuning, "train_run", fail)
    with pytest.raises(InvalidInputError, match="no such data"):
        tune(config(), out=tmp_path / "a" / "run", tries=TRIES, loaded=DIGITS)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_the_worst_result(tmp_path, three_trials):
    reports = []
    tries = {"learning_rate": [1e30, 0.5]}
    chosen = config(max_grad_norm=1e12)  # whose noise, times 1e30, is beyond single precision
    run = tune(chosen, out=tmp_path / "run", tries=tries, loaded=DIGITS, on_trial=reports.append)
    assert {report.values["learning_rate"] for report in reports} == {1e30, 0.5}
    assert all((report.score is None) == (report.values["learning_rate"] == 1e30) for report in reports)
    assert run.config.training.learning_rate == 0.5
    with pytest.raises(InvalidInputError, match="in all trials"):
        tune(chosen, out=tmp_path / "none", tries={"learning_rate": [1e30]}, loaded=DIGITS)
    assert [path.name for path in (tmp_path / "none").iterdir()] == ["ledger.jsonl"]  # it is paid for


def test_the_score_of_private_examples_is_noisy_and_of_public_ones_is_not():
    """The deviation of 500 scores: by chance outside once in 10⁵ seeds; that of 3/4 or 4/3 of the noise is outside."""
    model = small_network(None, None)
    inputs, targets = DIGITS.holdout_inputs, DIGITS.holdout_targets
    right = Score(inputs=inputs, targets=targets, noise=None)(model, KeyStream(bytes(16)))
    noisy = Score(inputs=inputs, targets=targets, noise=5.0)
    generator = np.random.default_rng(0)
    scores = np.array([noisy(model, KeyStream.from_generator(generator)) for _ in range(500)])
    low, high = stats.chi2(500).ppf([5e-6, 1 - 5e-6])
    for noise, holds in ((5.0, True), (3.75, False), (6.67, False)):
        assert (low < ((scores - right) ** 2).sum() / noise**2 < high) == holds
    assert right == (model(inputs).argmax(1) == targets).sum()
    assert noisy.events[0].noise_multiplier == 5.0
    with pytest.raises(InvalidInputError, match="score_noise is 0"):
        validation_score(config(), DIGITS, None, 0)


def test_public_examples_cost_nothing_and_are_not_the_test_set(tmp_path):
    path = tmp_path / "public.npz"
    inputs, targets = DIGITS.train_inputs[:50].numpy(), DIGITS.train_targets[:50].numpy()
    np.savez(path, x_train=inputs, y_train=targets, x_test=inputs, y_test=targets)
    loaded, chosen = load_data("digits"), config(holdout=0)
    score = validation_score(chosen, loaded, str(path), 10.0)
    assert score.events == ()
    assert len(score.targets) == 50
    event = search_event(chosen, candidates(chosen, TRIES), loaded, score, mean=5, shape=0)
    assert len(event.trial) == 1
    with pytest.raises(InvalidInputError, match="has the test examples of the run"):
        validation_score(chosen, loaded, "digits", 10.0)
    for given, data in ((None, loaded), (str(path), DIGITS)):
        with pytest.raises(InvalidInputError, match="one of them"):
            validation_score(chosen, data, given, 10.0)
    population = config(population=5000)
    with pytest.raises(InvalidInputError, match="not public"):
        validation_score(population, DIGITS, None, 10.0)


def test_no_candidate_costs_more_than_the_event():
    chosen = config()
    tried = candidates(chosen, {"batch_size": [16, 256], "steps": [3, 30]})
    assert len(tried) == 4
    score = validation_score(chosen, DIGITS, None, 10.0)
    event = search_event(chosen, tried, DIGITS, score, mean=5, shape=1)
    steps = event.trial[0]
    assert (steps.sampling_rate, steps.steps) == (256 / 1300, 30)

    def curve(rate, count):
        accountant = rdp.RdpAccountant()
        noise = dp_accounting.GaussianDpEvent(steps.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, noise), count)
        return accountant._rdp

    largest = curve(steps.sampling_rate, steps.steps)
    for candidate in tried:
        training = candidate.config.training
        assert np.all(curve(training.rate(1300), training.steps) <= largest * (1 + 1e-9))


def test_a_private_release_of_r_is_a_part_of_each_trial():
    changes = {"noise_multiplier": 1.5, "redistribution": "private", "network": "digits-cnn"}
    chosen = run_config("digits", "secure-sgd", **TINY | changes)
    score = validation_score(chosen, DIGITS, None, 10.0)
    event = search_event(chosen, candidates(chosen, TRIES), DIGITS, score, mean=5, shape=1)
    assert [getattr(part, "label", "steps") for part in event.trial] == [
        "steps", "redistribution vector r", "score on the held-out examples",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"redistribution": "as-published", "method": "secure-sgd"}, "in the budget"),
        ({"noise_seed": 3}, "noise_seed is given"),
        ({"method": "sgd", "noise_multiplier": None}, "not private"),
    ],
)
def test_what_has_no_guarantee_is_refused(changes, message):
    options = TINY | {"noise_multiplier": 1.5, "network": "digits-cnn"} | changes
    chosen = run_config("digits", options.pop("method", "dpsgd"), **options)
    score = validation_score(chosen, DIGITS, None, 10.0)
    with pytest.raises(InvalidInputError, match=message):
        search_event(chosen, candidates(chosen, TRIES), DIGITS, score, mean=5, shape=1)


def test_noise_that_is_not_enough_is_refused():
    chosen = config(epsilon=0.5)
    score = validation_score(chosen, DIGITS, None, 10.0)
    with pytest.raises(PrivacyError, match="costs epsilon"):
        search_event(chosen, candidates(chosen, TRIES), DIGITS, score, mean=5, shape=1)
    assert epsilon_spent([_event()], 1e-4, "rdp") > 0.5


@pytest.mark.parametrize(
    ("tries", "message"),
    [
        ({}, "0 combinations"),
        ({"learning_rate": []}, "at least one"),
        ({"learning_rate": 0.5}, "valid: a list"),
        ({"learning_rate": "0.5"}, "valid: a list"),
        ({"learning_rate": [0.5, -1]}, "learning_rate is -1"),
        ({"learning_rat": [1]}, "did you mean 'learning_rate'"),
        ({"robustness.steps": [1]}, "cannot be searched"),
        ({"train_radius": [0.1]}, "not a setting of the method dpsgd"),
        *(({name: [1]}, "cannot be searched") for name in ("noise_multiplier", "epsilon", "delta", "seed", "holdout",
                                                           "sampling_rate", "noise_seed", "r_noise_multiplier")),
        ({"steps": list(range(1, 200)), "batch_size": list(range(1, 200))}, "39601 combinations"),
    ],
)  # fmt: skip
def test_what_cannot_be_tried_is_refused(tries, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        candidates(config(), tries)
