"""The ledger: on disk first, replay gives the same number, nothing is undercounted or overspent."""

import json
import math
import os
import warnings

import pytest

import securesgd.privacy.ledger as ledger_module
from securesgd.errors import InvalidInputError, PrivacyError
from securesgd.privacy import (
    Ledger,
    UnprotectedRelease,
    calibrated_noise_multiplier,
    epsilon_spent,
    read_ledger,
    replayed_statement,
)

from .conftest import RELEASE, block


def test_a_ledger_is_read_as_typed_records(written):
    with Ledger.open(written) as ledger:
        contents = read_ledger(written)  # a ledger in use can be read
        assert contents.header == ledger.header
        assert tuple(record.event for record in contents.records) == ledger.events
        assert contents.records[-1].epsilon == ledger.epsilon
        assert contents.statement == ledger.statement()
        assert contents.head == ledger.head
        assert not contents.torn_end
    assert [record.block and record.block.first_step for record in contents.records] == [None, 0, 50, 100]
    assert contents.has_line(*contents.head)
    assert not contents.has_line(1, contents.digests[0])
    assert not contents.has_line(9, contents.digests[0])
    written.write_bytes(written.read_bytes() + b'{"index":5,"ev')
    torn = read_ledger(written)
    assert torn.torn_end
    assert torn.records == contents.records


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_replay_gives_exactly_the_reported_statement(path, accountant):
    with Ledger.create(path, delta=1e-5, accountant=accountant, dataset_size=60_000) as ledger:
        assert replayed_statement(path) == ledger.statement()
        ledger.record(RELEASE)
        for first in (0, 50, 100):
            ledger.reserve(block(50), first_step=first, stream="run")
            assert replayed_statement(path) == ledger.statement()
            assert ledger.epsilon == ledger.statement().epsilon
        reported = ledger.statement()
    assert reported.epsilon == epsilon_spent([RELEASE, block(150)], 1e-5, accountant)
    assert replayed_statement(path) == reported
    with Ledger.open(path) as again:
        assert again.statement() == reported
        assert again.events == (RELEASE, block(50), block(50), block(50))
        assert (again.header.dataset_size, again.header.target_epsilon) == (60_000, None)


def test_running_epsilon_is_in_every_line(written):
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert lines[0]["format"] == "securesgd-ledger"
    assert lines[0]["adjacency"] == "zero-out"
    assert lines[0]["accountant_version"].startswith("dp-accounting ")
    for count, line in enumerate(lines[2:], start=1):
        assert line["epsilon"] == epsilon_spent([RELEASE, block(50 * count)], 1e-5, "rdp")


def test_a_release_is_synced_before_the_call_returns(path, monkeypatch):
    ledger = Ledger.create(path, delta=1e-5, accountant="rdp")
    on_disk_at_sync = []
    real = os.fsync

    def spy(descriptor):
        on_disk_at_sync.append(len(path.read_bytes().splitlines()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    ledger.record(RELEASE)
    ledger.reserve(block(50), first_step=0, stream="run")
    assert on_disk_at_sync == [2, 3]


def test_the_step_beyond_the_target_is_refused_and_nothing_is_written(path):
    target = epsilon_spent([block(120)], 1e-5, "rdp")
    with Ledger.create(path, delta=1e-5, target_epsilon=target, accountant="rdp") as ledger:
        ledger.reserve(block(100), first_step=0, stream="run")
        before = path.read_bytes()
        with pytest.raises(PrivacyError) as caught:
            ledger.reserve(block(50), first_step=100, stream="run")
        message = str(caught.value)
        assert f"{epsilon_spent([block(150)], 1e-5, 'rdp'):.6g}" in message
        assert f"target {target:g}" in message
        assert "20 of these 50 steps are still affordable" in message
        assert "\n" not in message
        assert path.read_bytes() == before
        assert ledger.steps_reserved("run") == 100
        assert ledger.affordable(block(50), first_step=100, stream="run") == 20
        assert ledger.affordable(block(50), first_step=80, stream="run") == 40
        assert ledger.affordable(block(50), first_step=100, stream="other") == 20
        with pytest.raises(PrivacyError, match="infinite, above the target"):
            ledger.record(UnprotectedRelease(label="r", reason="as published"))
        ledger.reserve(block(20), first_step=100, stream="run")
        assert ledger.epsilon == target
        with pytest.raises(PrivacyError, match="0 of these 1 steps"):
            ledger.reserve(block(1), first_step=120, stream="run")


def test_a_calibrated_run_fits_its_target_to_the_last_block(path):
    noise = calibrated_noise_multiplier(1.0, 1e-5, 0.02, 230, extra_events=[RELEASE])
    with Ledger.create(path, delta=1e-5, target_epsilon=1.0) as ledger:
        ledger.record(RELEASE)
        for first in range(0, 230, 100):
            ledger.reserve(block(min(100, 230 - first), noise, 0.02), first_step=first, stream="run")
        assert 1.0 - 1e-3 <= ledger.epsilon <= 1.0


def test_a_step_runs_only_after_it_is_reserved(path):
    with Ledger.create(path, delta=1e-5, accountant="rdp") as ledger:
        with pytest.raises(PrivacyError, match="step 0 of stream 'run' is not reserved"):
            ledger.require_step(0, stream="run")
        ledger.reserve(block(50), first_step=0, stream="run")
        ledger.require_step(49, stream="run")
        for step, stream in ((50, "run"), (0, "other")):
            with pytest.raises(PrivacyError, match=f"step {step} of stream"):
                ledger.require_step(step, stream=stream)
        ledger.reserve(block(50), first_step=70, stream="run")  # a gap stays unpaid
        assert ledger.steps_reserved("run") == 50
        assert ledger.steps_reserved("run", first_step=70) == 120
        ledger.reserve(block(70, noise=3.0), first_step=120, stream="run")
        assert ledger.steps_reserved("run", first_step=70) == 190


def test_a_reserved_block_counts_in_full_after_a_crash(path):
    ledger = Ledger.create(path, delta=1e-5, accountant="rdp")
    ledger.reserve(block(50), first_step=0, stream="run")
    ledger.require_step(0, stream="run")
    ledger.close()  # the process dies after one step of fifty
    resumed = Ledger.open(path)
    assert resumed.steps_charged == 50
    assert resumed.epsilon == resumed.statement().epsilon == epsilon_spent([block(50)], 1e-5, "rdp")


def test_running_a_paid_block_again_from_the_same_stream_is_free(written):
    with Ledger.open(written) as ledger:
        before, spent = written.read_bytes(), ledger.epsilon
        for first, count in ((0, 50), (50, 50), (60, 90), (0, 150)):
            reservation = ledger.reserve(block(count), first_step=first, stream="run")
            assert (reservation.charged, reservation.stop) == (0, first + count)
        ledger.require_step(149, stream="run")
        assert written.read_bytes() == before
        assert ledger.epsilon == spent
        # only what lies beyond is charged
        reservation = ledger.reserve(block(50), first_step=120, stream="run")
        assert reservation.charged == 20
        assert ledger.steps_reserved("run") == 170
        assert ledger.steps_charged == 170


def test_another_stream_at_a_paid_position_is_charged_again(written):
    with Ledger.open(written) as ledger:
        reservation = ledger.reserve(block(50), first_step=100, stream="run with another seed")
        assert reservation.charged == 50
        assert ledger.steps_charged == 200
        assert ledger.epsilon == epsilon_spent([RELEASE, block(200)], 1e-5, "rdp")
        assert ledger.steps_reserved("run with another seed") == 0  # steps 0 to 99 belong to the other stream
        assert ledger.steps_reserved("run with another seed", first_step=100) == 150
        before = written.read_bytes()
        assert not ledger.reserve(block(50), first_step=100, stream="run with another seed").charged
        assert written.read_bytes() == before
    assert replayed_statement(written).epsilon == epsilon_spent([RELEASE, block(200)], 1e-5, "rdp")


def test_the_same_noise_on_another_scale_is_refused(written):
    with Ledger.open(written) as ledger:
        before = written.read_bytes()
        for changed in (block(50, noise=2.5), block(50, rate=0.04)):
            with pytest.raises(PrivacyError, match="valid: the same, or a new stream"):
                ledger.reserve(changed, first_step=100, stream="run")
        assert written.read_bytes() == before
        ledger.reserve(block(50, noise=2.5), first_step=150, stream="run")  # a schedule may change what is to come


def test_undercounting_after_resume_would_be_seen(written, monkeypatch):
    """The mutation: a resumed ledger that forgets its last, unfinished block."""
    honest = replayed_statement(written).epsilon
    real = ledger_module.parse_ledger

    def forgetful(chain, path):
        header, records = real(chain, path)
        return header, records[:-1]

    monkeypatch.setattr(ledger_module, "parse_ledger", forgetful)
    with Ledger.open(written) as ledger:
        assert ledger.statement().epsilon < honest
        assert ledger.steps_charged != 150


def test_an_unprotected_release_is_recorded_and_voids_the_statement(path):
    with Ledger.create(path, delta=1e-5, accountant="rdp") as ledger:
        ledger.record(UnprotectedRelease(label="r", reason="as published"))
        ledger.reserve(block(50), first_step=0, stream="run")
        assert ledger.epsilon == math.inf
    statement = replayed_statement(path)
    assert statement.epsilon == math.inf
    assert "not guaranteed: r: as published" in statement.in_words
    assert statement.accounted_epsilon == epsilon_spent([block(50)], 1e-5, "rdp")
    Ledger.open(path).close()


def test_one_process_at_a_time_but_anyone_may_read(written):
    with Ledger.open(written) as ledger:
        with pytest.raises(PrivacyError, match="in use by another process"):
            Ledger.open(written)
        assert replayed_statement(written) == ledger.statement()
        ledger.record(RELEASE)  # reading did not drop the lock
        with pytest.raises(PrivacyError, match="in use"):
            Ledger.open(written)
    with pytest.raises(PrivacyError, match="closed"):
        ledger.record(RELEASE)


@pytest.mark.parametrize(
    ("call", "shows"),
    [
        (lambda path: Ledger.create(path, delta=0), "delta is 0"),
        (lambda path: Ledger.create(path, delta=1e-5, target_epsilon=0), "target_epsilon is 0"),
        (lambda path: Ledger.create(path, delta=1e-5, accountant="moments"), "accountant is 'moments'"),
        (lambda path: Ledger.create(path, delta=1e-5, dataset_size=-3), "dataset_size is -3"),
        (lambda path: Ledger.create(path / "no" / "such", delta=1e-5), "cannot be created"),
    ],
)
def test_bad_input_creates_nothing(path, call, shows):
    with pytest.raises(InvalidInputError) as caught:
        call(path)
    assert shows in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
    ("call", "shows"),
    [
        (lambda ledger: ledger.record("r"), "event is 'r'"),
        (lambda ledger: ledger.reserve(RELEASE, first_step=0, stream="s"), "valid: SampledGaussianSteps"),
        (lambda ledger: ledger.reserve(block(1), first_step=-1, stream="s"), "first_step is -1"),
        (lambda ledger: ledger.reserve(block(1), first_step=0, stream=""), "stream is ''"),
        (lambda ledger: ledger.require_step(-1, stream="s"), "step is -1"),
    ],
)
def test_bad_input_writes_nothing(written, call, shows):
    with Ledger.open(written) as ledger:
        before = written.read_bytes()
        with pytest.raises(InvalidInputError) as caught:
            call(ledger)
        assert shows in str(caught.value)
        assert written.read_bytes() == before


def test_no_warnings_on_the_usual_path(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Ledger.create(path, delta=1e-5, target_epsilon=2.0) as ledger:
            ledger.reserve(block(100), first_step=0, stream="run")
