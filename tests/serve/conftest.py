"""A quickly trained run of digits, and servers of it on this machine, each in a thread."""

import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import torch

from securesgd.run import load_run
from securesgd.serve.answers import ServedRun
from securesgd.serve.limits import Limits
from securesgd.serve.server import build_server, listening_socket
from tests.command_line import run_here

DRAWS = 200


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "run"
    settings = ("steps=40", "batch_size=128", "copies=1", "accountant=rdp")
    options = [word for setting in settings for word in ("--set", setting)]
    result = run_here("train", "--dataset", "digits", "--method", "secure-sgd", "--out", folder, *options)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="session")
def served(digits_run):
    return ServedRun(load_run(digits_run), draws=DRAWS)


@pytest.fixture(scope="session")
def sure(served):
    """Test digits that the run is sure of, as (input, class)."""
    inputs = served.run.data.test_inputs[:40]
    found = [
        (x, p.label) for x, p in zip(inputs, served.run.predict(inputs, draws=1000), strict=True) if p.radius > 0.02
    ]
    assert len(found) >= 3
    return found


@contextmanager
def running(served, **limits):
    """Serve a run within the context; yield the server, with its address as `server.address`."""
    with listening_socket("127.0.0.1", 0) as listening:
        server = build_server(served, Limits(**limits))
        server.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield server
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def client(served):
    with running(served) as server, httpx.Client(base_url=server.address, timeout=60) as client:
        yield client


class Slowly:
    """A stand-in for a served run: every batch takes until `release` is set. For what surrounds the model."""

    def __init__(self, served):
        self.served, self.release, self.batches = served, threading.Event(), []

    def description(self):
        return self.served.description()

    def answers(self, questions):
        self.batches.append(len(questions))
        self.release.wait(30)
        return [{"class": "1"} for _ in questions]


def as_json(x: torch.Tensor):
    return {"pixels": x.tolist()}
