"""Clients that send too much, too slowly, or nonsense: refused in words, and the server answers the next one."""

import io
import json
import socket
import struct
import threading
import time
import zlib

import httpx
import pytest
from PIL import Image

from tests.serve.conftest import Slowly, as_json, running

LIMITS = {"body_bytes": 200_000, "header_seconds": 0.5, "body_seconds": 0.7}
PNG, JPEG, JSON = ({"Content-Type": kind} for kind in ("image/png", "image/jpeg", "application/json"))


@pytest.fixture(scope="module")
def server(served):
    with running(served, **LIMITS) as server:
        yield server


@pytest.fixture
def address(server, sure):
    """The address of the server, which must answer after the test as before."""
    yield server.address
    reply = httpx.post(server.address + "/api/predict", json=as_json(sure[0][0]), timeout=30)
    assert reply.status_code == 200
    assert reply.json()["label"] == sure[0][1]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side):
    """A PNG of side×side black pixels, a thousand times smaller than they are."""
    squeeze, rows = zlib.compressobj(9), b"\0" * (side + 1)
    data = b"".join(squeeze.compress(rows) for _ in range(side)) + squeeze.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def saved(image, kind):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


NONSENSE = {
    "bomb": (bomb(8000), PNG, "pixels"),
    "header of a bomb": (bomb(1).replace(struct.pack(">II", 1, 1), struct.pack(">II", 2**31 - 1, 2**31 - 1)), PNG, ""),
    "cut PNG": (bomb(300)[:-40], PNG, "the image"),
    "no image": (b"hello", PNG, "not an image"),
    "empty image": (b"", JPEG, "not an image"),
    "GIF": (saved(Image.new("L", (8, 8)), "GIF"), PNG, "not an image"),
    "transparent": (saved(Image.new("RGBA", (8, 8)), "PNG"), PNG, "without transparency"),
    "16 bits": (saved(Image.new("I;16", (8, 8)), "PNG"), PNG, "8-bit"),
    "no JSON": (b"{", JSON, "not valid JSON"),
    "no text": (b'{"pixels": "\xff"}', JSON, "not valid JSON"),
    "NaN": (json.dumps({"pixels": [[[float("nan")] * 8] * 8]}).encode(), JSON, "not a finite number"),
    "Infinity": (b'{"pixels": [[[Infinity]]]}', JSON, "not a finite number"),
    "1e999": (b'{"pixels": [[[1e999]]]}', JSON, "not a finite number"),
    "1e300": (json.dumps({"pixels": [[[1e300] * 8] * 8]}).encode(), JSON, "single precision"),
    "large integer": (b'{"pixels": [' + b"9" * 5000 + b"]}", JSON, "not valid JSON"),
    "deep": (b"[" * 90_000 + b"]" * 90_000, JSON, "nested"),
    "deep object": (b'{"pixels":' * 15_000 + b"1" + b"}" * 15_000, JSON, "nested"),
    "twice": (b'{"pixels": [1], "pixels": [2]}', JSON, "twice"),
    "other key": (b'{"pixel": [1]}', JSON, '"pixels"'),
    "one more key": (b'{"pixels": [1], "seed": 1}', JSON, "nothing else"),
    "row": (b'{"row": {"a": 1}}', JSON, '"pixels"'),
    "list": (b"[1, 2]", JSON, '"pixels"'),
    "null": (b"null", JSON, '"pixels"'),
    "wrong shape": (b'{"pixels": [[[0.5]]]}', JSON, "[1, 8, 8]"),
    "ragged": (json.dumps({"pixels": [[[0.5] * 8] * 7 + [[0.5] * 7]]}).encode(), JSON, "[1, 8, 8]"),
    "texts": (json.dumps({"pixels": [[["0.5"] * 8] * 8]}).encode(), JSON, "not numbers"),
    "truth values": (json.dumps({"pixels": [[[True] * 8] * 8]}).encode(), JSON, "not numbers"),
    "out of range": (json.dumps({"pixels": [[[255] * 8] * 8]}).encode(), JSON, "valid: 0 to 1"),
}


@pytest.mark.parametrize("verb", ["predict", "attack"])
def test_nonsense_is_refused_in_one_line(address, verb):
    with httpx.Client(base_url=address, timeout=30) as client:
        for name, (body, headers, words) in NONSENSE.items():
            reply = client.post(f"/api/{verb}", content=body, headers=headers)
            assert reply.status_code == 400, name
            error = reply.json()["error"]
            assert words in error, (name, error)
            assert len(error) < 600, name
            assert "\n" not in error, name


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "image/gif", "", "multipart/form-data"]
)
def test_other_types_are_refused_by_name(address, kind):
    reply = httpx.post(address + "/api/predict", content=b"x", headers={"Content-Type": kind})
    assert reply.status_code == 415
    assert "image/png" in reply.json()["error"]


def test_addresses_methods_and_parameters_that_are_not_there(address):
    assert httpx.get(address + "/api/predict").status_code == 405
    assert httpx.get(address + "/nothing").status_code == 404
    reply = httpx.post(address + "/api/predict?invert=perhaps", content=b"{}", headers=JSON)
    assert reply.status_code == 400
    assert "invert" in reply.json()["error"]


def connect(address):
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    return connection


def head(*lines):
    return "\r\n".join(
        ["POST /api/predict HTTP/1.1", "Host: localhost", "Content-Type: image/png", *lines, "", ""]
    ).encode()


def reply_of(connection):
    """The bytes until the server closes, whether it was reset or not."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except OSError:
        pass
    return received


def test_a_hundred_megabytes_are_refused_by_their_header_alone(address):
    with connect(address) as connection:
        connection.sendall(head("Content-Length: 100000000"))
        assert reply_of(connection).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("length", ["1" * 30, "-1", "0x10", "1, 2"])
def test_lengths_that_are_none_are_refused(address, length):
    with connect(address) as connection:
        connection.sendall(head(f"Content-Length: {length}") + b"x")
        assert reply_of(connection)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413")


def test_a_body_without_a_length_is_not_read_to_its_end(address):
    sent, piece = 0, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with connect(address) as connection:
        connection.sendall(head("Transfer-Encoding: chunked"))
        try:
            for _ in range(1600):  # a hundred megabytes
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        assert reply_of(connection).startswith(b"HTTP/1.1 413")
    assert sent < 20_000_000  # what the kernel and the limit hold


def test_slow_headers_and_slow_bodies_are_cut_off_while_others_are_answered(address):
    slow = [connect(address) for _ in range(40)]
    started = time.monotonic()
    for number, connection in enumerate(slow):
        connection.sendall(head("Content-Length: 1000") if number % 2 else b"POST /api/predict HTTP/1.1\r\nHost: loc")
    assert httpx.get(address + "/healthz", timeout=5).status_code == 200
    stop = threading.Event()

    def drip():
        while not stop.wait(0.1):
            for connection in slow:
                try:
                    connection.sendall(b"x")
                except OSError:
                    continue

    dripping = threading.Thread(target=drip)
    dripping.start()
    replies = [reply_of(connection) for connection in slow]
    stop.set()
    dripping.join()
    assert time.monotonic() - started < 8
    assert all(reply == b"" or reply.startswith(b"HTTP/1.1 408") for reply in replies)
    assert sum(reply.startswith(b"HTTP/1.1 408") for reply in replies) > 20
    for connection in slow:
        connection.close()


def test_a_client_that_goes_away_in_the_middle_of_its_body_leaves_nothing_behind(address):
    for _ in range(30):
        with connect(address) as connection:
            connection.sendall(head("Content-Length: 100000") + b"x" * 5000)


def test_a_full_queue_and_a_slow_model_are_answered_with_statuses_of_their_own(served):
    slow = Slowly(served)
    with (
        running(slow, queue=2, answer_seconds=1.5) as server,
        httpx.Client(base_url=server.address, timeout=20) as client,
    ):
        replies = []

        def ask():
            replies.append(client.post("/api/predict", content=b"{}", headers=JSON))

        def start():
            thread = threading.Thread(target=ask)
            thread.start()
            return thread

        threads = [start()]
        while not slow.batches:
            time.sleep(0.01)
        threads += [start() for _ in range(6)]
        for thread in threads:
            thread.join()
        assert sorted(reply.status_code for reply in replies) == [429] * 4 + [504] * 3
        assert all(reply.headers["Retry-After"] == "1" for reply in replies if reply.status_code == 429)
        slow.release.set()
        end = time.monotonic() + 20
        while (status := client.post("/api/predict", content=b"{}", headers=JSON).status_code) == 429:
            assert time.monotonic() < end, "the queue stays full"
            time.sleep(0.05)  # the thread has yet to take out what nobody waits for any more
        assert status == 200
        assert slow.batches == [1, 1]  # those that had given up were not computed


def test_bodies_together_are_bounded_too(served):
    slow = Slowly(served)
    limits = {"body_bytes": 100_000, "buffered_bytes": 150_000}
    with running(slow, **limits) as server, httpx.Client(base_url=server.address, timeout=20) as client:
        first = []
        thread = threading.Thread(
            target=lambda: first.append(client.post("/api/predict", content=b" " * 90_000, headers=JSON))
        )
        thread.start()
        while not slow.batches:
            time.sleep(0.01)
        assert client.post("/api/predict", content=b" " * 90_000, headers=JSON).status_code == 429
        slow.release.set()
        thread.join()
        assert first[0].status_code == 200
        assert client.post("/api/predict", content=b" " * 90_000, headers=JSON).status_code == 200


def test_a_server_that_is_told_to_stop_finishes_what_it_has_and_takes_no_more(served):
    slow = Slowly(served)
    replies = []
    with running(slow) as server:
        thread = threading.Thread(
            target=lambda: replies.append(httpx.post(server.address + "/api/predict", content=b"{}", headers=JSON))
        )
        thread.start()
        while not slow.batches:
            time.sleep(0.01)
        server.should_exit = True
        time.sleep(0.5)
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.address + "/healthz")
        assert not replies
        slow.release.set()
        thread.join(10)
    assert [reply.status_code for reply in replies] == [200]
