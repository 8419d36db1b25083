"""Bytes are synced before a call returns; a file has one owner; a failed write is final."""

import errno
import os
import subprocess
import sys

import pytest

from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.runtime.append_only_file import AppendOnlyFile


@pytest.fixture
def calls(monkeypatch):
    """The order of the system calls that matter."""
    seen = []

    def spy(name):
        real = getattr(os, name)

        def call(*arguments, **options):
            result = real(*arguments, **options)
            kind = "folder" if name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}") else name  # noqa: PTH112
            seen.append(kind)
            return result

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fsync", "link"):
        spy(name)
    return seen


def test_creation_syncs_the_file_before_it_gets_its_name_and_the_folder_after(tmp_path, calls):
    AppendOnlyFile.create(tmp_path / "a", b"head\n").close()
    assert calls == ["write", "fsync", "link", "folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_append_syncs_before_it_returns(tmp_path, calls):
    file = AppendOnlyFile.create(tmp_path / "a", b"head\n")
    calls.clear()
    file.append(b"line\n", at=5)
    assert calls == ["write", "fsync"]
    assert file.path.read_bytes() == b"head\nline\n"


def test_short_writes_are_completed(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:2]))
    file = AppendOnlyFile.create(tmp_path / "a", b"head\n")
    file.append(b"a longer line\n", at=5)
    assert file.path.read_bytes() == b"head\na longer line\n"


def test_append_drops_what_is_beyond(tmp_path):
    (tmp_path / "a").write_bytes(b"head\ntorn")
    file, content = AppendOnlyFile.open(tmp_path / "a")
    assert content == b"head\ntorn"
    file.append(b"x\n", at=5)
    assert file.path.read_bytes() == b"head\nx\n"


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "a").write_bytes(b"precious")
    (tmp_path / "b").symlink_to(tmp_path / "nowhere")
    for name in ("a", "b"):
        with pytest.raises(InvalidInputError, match="exists; valid: a new path"):
            AppendOnlyFile.create(tmp_path / name, b"head\n")
    assert (tmp_path / "a").read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_creation_works_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    file = AppendOnlyFile.create(tmp_path / "a", b"head\n")
    file.append(b"x\n", at=5)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be created"):
        AppendOnlyFile.create(tmp_path / "no" / "a", b"head\n")
    with pytest.raises(DamagedFileError, match="does not exist"):
        AppendOnlyFile.open(tmp_path / "a")
    with pytest.raises(DamagedFileError, match="cannot be opened"):
        AppendOnlyFile.open(tmp_path)


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_after_a_failed_write_nothing_more_is_acknowledged(tmp_path, monkeypatch, failing):
    file = AppendOnlyFile.create(tmp_path / "a", b"head\n")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(PrivacyError, match="No space left on device"):
            file.append(b"x\n", at=5)
    with pytest.raises(PrivacyError, match="open it again"):
        file.append(b"x\n", at=5)


def test_one_owner(tmp_path):
    file = AppendOnlyFile.create(tmp_path / "a", b"head\n")
    with pytest.raises(PrivacyError, match="in use by another process"):
        AppendOnlyFile.open(tmp_path / "a")
    code = (
        "import sys; from pathlib import Path; from securesgd.runtime.append_only_file import AppendOnlyFile; "
        "AppendOnlyFile.open(Path(sys.argv[1]))"
    )
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True)
    assert "PrivacyError" in other.stderr
    file.close()
    file.close()
    AppendOnlyFile.open(tmp_path / "a")[0].close()
    with pytest.raises(PrivacyError, match="closed"):
        file.append(b"x\n", at=5)


def test_a_forked_child_may_not_write(tmp_path, monkeypatch):
    file = AppendOnlyFile.create(tmp_path / "a", b"head\n")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(PrivacyError, match="only that process"):
        file.append(b"x\n", at=5)


@pytest.mark.parametrize("meddle", ["remove", "replace", "extend", "shorten"])
def test_a_file_changed_behind_our_back_is_noticed(tmp_path, meddle):
    path = tmp_path / "a"
    file = AppendOnlyFile.create(path, b"head\n")
    if meddle == "remove":
        path.unlink()
    elif meddle == "replace":
        path.rename(tmp_path / "b")
        path.write_bytes(b"head\n")
    else:
        path.write_bytes(b"head\nmore\n" if meddle == "extend" else b"he")
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(DamagedFileError, match="while in use"):
        file.append(b"x\n", at=5)
    assert (path.read_bytes() if path.exists() else None) == before
