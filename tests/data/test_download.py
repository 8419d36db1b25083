"""Downloads are whole or absent, and resumed."""

import socket

import pytest

from securesgd.data.sources import download
from securesgd.errors import DataUnavailableError

CONTENT = bytes(range(256)) * 4_000


@pytest.fixture
def target(web, tmp_path):
    web.files["file"] = CONTENT
    return tmp_path / "file"


def partial_of(target):
    return target.with_name("file.partial")


def test_a_file_arrives_with_progress(web, target):
    seen = []
    assert download(web.address + "file", target, lambda *step: seen.append(step)) is False
    assert target.read_bytes() == CONTENT
    assert not partial_of(target).exists()
    assert seen[-1] == (web.address + "file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_an_earlier_part_is_continued_not_fetched_again(web, target):
    partial_of(target).write_bytes(CONTENT[:300_000])
    assert download(web.address + "file", target) is True
    assert target.read_bytes() == CONTENT
    assert web.asked == [("/file", "bytes=300000-")]


def test_a_server_without_ranges_sends_it_all_again(web, target):
    web.ranges = False
    partial_of(target).write_bytes(b"x" * 1_000)
    assert download(web.address + "file", target) is False
    assert target.read_bytes() == CONTENT


def test_a_cut_connection_is_taken_up_again(web, target):
    web.cuts = [100_000, 200_000]
    download(web.address + "file", target)
    assert target.read_bytes() == CONTENT
    assert [asked for _, asked in web.asked] == [None, "bytes=100000-", "bytes=300000-"]


def test_a_server_that_always_cuts_is_given_up_and_the_part_kept(web, target, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    web.cuts = [100_000] + [0] * 10
    with pytest.raises(DataUnavailableError, match="closed early"):
        download(web.address + "file", target)
    assert not target.exists()
    assert partial_of(target).read_bytes() == CONTENT[:100_000]
    assert len(web.asked) == 4


def test_a_part_longer_than_the_file_is_discarded(web, target):
    partial_of(target).write_bytes(b"x" * (len(CONTENT) + 1))
    assert download(web.address + "file", target) is False
    assert target.read_bytes() == CONTENT


def test_a_drip_of_single_bytes_ends(web, target):
    web.cuts = [1] * 1_000
    with pytest.raises(DataUnavailableError, match="closed early"):
        download(web.address + "file", target)
    assert len(web.asked) == 100


def test_more_than_announced_is_discarded(web, target):
    web.overlong = True
    partial_of(target).write_bytes(CONTENT[:1_000])
    with pytest.raises(DataUnavailableError, match="instead of the"):
        download(web.address + "file", target)
    assert not partial_of(target).exists()


def test_a_missing_file_and_a_refused_connection_name_the_reason(web, target):
    with pytest.raises(DataUnavailableError, match="HTTP 404"):
        download(web.address + "absent", target)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(DataUnavailableError, match="refused"):
        download(f"http://127.0.0.1:{port}/file", target)


def test_a_server_that_does_not_answer_is_left_after_the_timeout(target):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(DataUnavailableError, match="timed out"):
            download(f"http://127.0.0.1:{silent.getsockname()[1]}/file", target, timeout=0.2)
