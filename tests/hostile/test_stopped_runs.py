"""Attempts to break what is promised about runs that are stopped, resumed, finished, or begun twice at once."""

import json

import pytest
import torch

import securesgd as ss
from securesgd.errors import InvalidInputError, SecureSGDError
from securesgd.privacy import Ledger
from securesgd.runtime.run_folder import RunFolder
from securesgd.training import trained_weights
from securesgd.training.loop import train

from ..training.conftest import small_data, small_model, small_settings
from ..training.test_finish import finished, stopped
from .test_own_runs import SMALL, own_data, own_network


@pytest.fixture
def own_process(monkeypatch):
    """The memory of a process that has trained nothing yet."""
    monkeypatch.setattr(trained_weights, "_TRAINED", set())


@pytest.mark.parametrize(("owner", "name"), [(RunFolder, "write_secret"), (Ledger, "create")])
def test_a_second_process_that_starts_at_the_same_moment_does_not_change_the_key(
    tmp_path, monkeypatch, own_process, owner, name
):
    """Both find an empty folder. The key on disk must be that of the process that trains: resumed with another one, a
    step that is run again would be a second release, which nobody pays for."""
    folder, former, keys = tmp_path / "run", getattr(owner, name), []

    def first_step(report):
        keys.append(json.loads((folder / "secret.json").read_text())["key"])
        raise InterruptedError

    def process():
        settings = small_settings(noise_seed=None)
        with pytest.raises((InterruptedError, SecureSGDError)):
            train(small_model(), small_data(), settings, folder, resume=True, on_step=first_step)

    def after_the_other_process(*arguments, **options):
        monkeypatch.setattr(owner, name, former)
        process()
        return former(*arguments, **options)

    monkeypatch.setattr(owner, name, after_the_other_process)
    process()
    assert [json.loads((folder / "secret.json").read_text())["key"]] == keys  # of the one process that trained


def test_a_run_that_is_finished_while_another_process_resumes_it_is_not_trained_on(tmp_path, monkeypatch):
    settings = stopped(tmp_path / "run")
    open_ledger, models = Ledger.open.__func__, []

    def after_the_other_process(cls, path):
        monkeypatch.setattr(Ledger, "open", classmethod(open_ledger))
        models.append(finished(tmp_path / "run", settings)[1])
        return open_ledger(cls, path)

    monkeypatch.setattr(Ledger, "open", classmethod(after_the_other_process))
    with pytest.raises(InvalidInputError, match="was finished"):
        train(small_model(), small_data(), settings, tmp_path / "run", resume=True)
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"ledger.jsonl", "model.safetensors"}
    result, model = finished(tmp_path / "run", settings)
    assert result.steps == 7
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), models[0].parameters(), strict=True))


def test_weights_of_a_finished_run_do_not_begin_a_new_ledger(tmp_path, monkeypatch):
    settings = stopped(tmp_path / "run", noise_seed=None)
    finished(tmp_path / "run", settings)
    monkeypatch.setattr(trained_weights, "_TRAINED", set())  # as in another process
    _, model = finished(tmp_path / "run", settings)  # loads them only
    with pytest.raises(InvalidInputError, match="trained on these data before"):
        train(model, small_data(), settings, tmp_path / "new")
    assert not (tmp_path / "new" / "ledger.jsonl").exists()


def test_weights_of_a_complete_run_do_not_begin_a_new_ledger(tmp_path, monkeypatch):
    ss.train(own_network(), own_data(), out=tmp_path / "run", **SMALL)
    monkeypatch.setattr(trained_weights, "_TRAINED", set())  # as in another process
    model = own_network()
    ss.train(model, own_data(), out=tmp_path / "run", resume=True, **SMALL)
    with pytest.raises(InvalidInputError, match="trained on these data before"):
        ss.train(model, own_data(), out=tmp_path / "new", **SMALL)
    ss.train(model, own_data(seed=5), out=tmp_path / "other", **SMALL)  # other data: the weights are public there
