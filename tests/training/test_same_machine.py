"""A step that is run again after a crash must have the bits it had: same threads, same kind of device and processor.

Other threads or instructions add up a sum in another order. Under the same noise the difference of two releases is that
of the sums, without any noise; a network of the paper's has other gradients on two threads than on one.
"""

import re
import warnings

import pytest
import torch

from securesgd.clipping.engine import ARITHMETIC
from securesgd.errors import InvalidInputError
from securesgd.runtime.machine import processor
from securesgd.runtime.tensors import load_tensors, save_tensors
from securesgd.training import fingerprint
from securesgd.training.loop import train

from .conftest import no_step, small_data, small_model, small_settings


@pytest.fixture
def threads():
    """Set the number of threads as another machine or OMP_NUM_THREADS would have it."""
    former = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(former)


class KilledError(Exception):
    """The process ends here, between two checkpoints."""


def killed_at_seven(report):
    if report.step == 7:
        raise KilledError


def killed_run(folder):
    with pytest.raises(KilledError):
        train(small_model(), small_data(), small_settings(), folder, on_step=killed_at_seven)


def test_a_run_is_resumed_on_the_threads_it_was_started_on(tmp_path, weights, threads):
    threads(1)
    whole, folder, seen = small_model(), tmp_path / "run", []
    train(whole, small_data(), small_settings(), tmp_path / "whole")
    killed_run(folder)
    assert load_tensors(folder / "checkpoint.safetensors").record["threads"] == 1
    threads(2)
    resumed = small_model(seed=5)
    words = "run was started on 1 threads, here are 2: it is resumed on 1, so that a step"
    with pytest.warns(UserWarning, match=words) as caught:
        train(
            resumed, small_data(), small_settings(), folder, resume=True,
            on_step=lambda report: seen.append(torch.get_num_threads()),
        )  # fmt: skip
    assert len(caught) == 1
    assert seen == [1] * 16
    assert torch.get_num_threads() == 2, "afterwards they are the caller's again"
    assert torch.equal(weights(resumed), weights(whole))


def test_the_threads_are_the_callers_again_after_an_error_and_a_finish_needs_none(tmp_path, threads):
    threads(1)
    killed_run(tmp_path / "run")
    threads(2)
    with pytest.warns(UserWarning, match="resumed on 1"), pytest.raises(KilledError):
        train(small_model(), small_data(), small_settings(), tmp_path / "run", resume=True, on_step=killed_at_seven)
    assert torch.get_num_threads() == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(small_model(), small_data(), small_settings(), tmp_path / "run", finish=True, on_step=no_step)


def test_a_run_is_not_resumed_on_another_kind_of_processor_but_can_be_finished(tmp_path, monkeypatch):
    killed_run(tmp_path / "run")
    here = re.escape(processor())
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX1024")
    words = f"run was started on a processor with {here}; valid: to resume it there, or to finish it as it is, got AVX"
    with pytest.raises(InvalidInputError, match=words):
        train(small_model(), small_data(), small_settings(), tmp_path / "run", resume=True)
    result = train(small_model(), small_data(), small_settings(), tmp_path / "run", finish=True, on_step=no_step)
    assert result.steps == 4


def test_a_refused_resume_leaves_the_first_weights_free_for_another_run(tmp_path, monkeypatch):
    killed_run(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
        with pytest.raises(InvalidInputError):
            train(small_model(seed=11), small_data(), small_settings(), tmp_path / "run", resume=True)
    train(small_model(seed=11), small_data(), small_settings(noise_seed=None, steps=2), tmp_path / "new")


@pytest.mark.parametrize("change", ["caches", "variable", "mkldnn"])
def test_what_else_chooses_the_kernels_is_part_of_the_processor(monkeypatch, change):
    here = processor()
    assert processor() == here
    if change == "caches":  # oneDNN cuts its sums into blocks of them
        features = getattr(torch.cpu, "get_capabilities", dict)()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features | {"l2_cache_size": 1}, raising=False)
    elif change == "variable":
        monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    else:
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert processor() != here


@pytest.mark.parametrize("change", ["our sums", "torch", "before there was a number"])
def test_a_run_of_other_arithmetic_is_not_resumed_but_can_be_finished(tmp_path, monkeypatch, change):
    """A version that adds in another order has other last bits: a step run again would be a second release."""
    folder = tmp_path / "run"
    killed_run(folder)
    if change == "our sums":
        monkeypatch.setattr(fingerprint, "ARITHMETIC", fingerprint.ARITHMETIC + 1)
    elif change == "torch":
        monkeypatch.setattr(torch, "__version__", "2.99.0")
    else:
        checkpoint = load_tensors(folder / "checkpoint.safetensors")
        del checkpoint.record["arithmetic"]
        save_tensors(folder / "checkpoint.safetensors", checkpoint)
    first = "an earlier version" if change.startswith("before") else f"arithmetic {ARITHMETIC} on torch 2"
    words = f"run was started on {re.escape(first)}.*; valid: to resume it there, or to finish it as it is, got arith"
    with pytest.raises(InvalidInputError, match=words):
        train(small_model(), small_data(), small_settings(), folder, resume=True, on_step=no_step)
    result = train(small_model(), small_data(), small_settings(), folder, finish=True, on_step=no_step)
    assert result.steps == 4
