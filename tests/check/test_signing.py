"""A signed folder: what is changed, added or removed afterwards is named, and another key is another signer."""

import stat

import pytest

from securesgd.check.folder import check_files
from securesgd.check.manifest import create_key, sign_folder
from securesgd.errors import InvalidInputError
from tests.check import forging
from tests.command_line import run_here


@pytest.fixture
def key(tmp_path):
    create_key(tmp_path / "me.key")
    return tmp_path / "me.key"


def signature(folder, public_key=None):
    return next(finding for finding in check_files(folder, public_key) if finding.claim == "signature")


def test_signing_and_checking_on_the_command_line(copied_run, tmp_path):
    made = run_here("sign", copied_run, "--new-key", tmp_path / "me.key")
    assert made.returncode == 0, made.stderr
    signer = made.stdout.split()[-1]
    assert stat.S_IMODE((tmp_path / "me.key").stat().st_mode) == 0o600
    anybody = signature(copied_run)
    assert anybody.outcome == "ok"
    assert f"signed by {signer}, whom you must know yourself" in anybody.words
    shown = run_here("check", copied_run, "--recompute", "0", "--public-key", tmp_path / "me.key.pub")
    assert shown.returncode == 0, shown.stdout
    assert f"signed by {signer}, the key that was given" in shown.stdout
    again = run_here("sign", copied_run, "--key", tmp_path / "me.key")
    assert again.returncode == 0
    assert signature(copied_run).outcome == "ok"


def test_what_is_done_after_signing_is_named(copied_run, key):
    sign_folder(copied_run, key)
    assert run_here("report", copied_run).returncode == 0
    finding = signature(copied_run)
    assert finding.outcome == "FAIL"
    assert "changed after signing: report.html" in finding.words
    sign_folder(copied_run, key)
    (copied_run / "claim.txt").write_text("epsilon = 0.1")
    assert "added after signing: claim.txt" in signature(copied_run).words
    (copied_run / "claim.txt").unlink()
    (copied_run / "attacks.csv").unlink()
    assert "removed after signing: attacks.csv" in signature(copied_run).words


def test_a_forger_with_another_key_is_another_signer(copied_run, key, tmp_path):
    sign_folder(copied_run, key)
    create_key(tmp_path / "forger.key")
    forging.swap_redistribution(copied_run)
    sign_folder(copied_run, tmp_path / "forger.key")
    assert signature(copied_run).outcome == "ok"  # and says by whom
    finding = signature(copied_run, tmp_path / "me.key.pub")
    assert finding.outcome == "FAIL"
    assert "not by SHA256:" in finding.words


def test_an_edited_manifest_or_signature_is_no_signature(copied_run, key):
    sign_folder(copied_run, key)
    for name, old, new in (
        ("manifest.json", '"version": 1', '"version":  1'),
        ("manifest.sig", '"signature": "', '"signature": "AA'),
        ("manifest.sig", '"public_key": "', '"public_key": "AA'),
    ):
        before = (copied_run / name).read_text()
        forging.edit_text(copied_run / name, old, new)
        assert signature(copied_run).outcome == "FAIL", name
        (copied_run / name).write_text(before)
    (copied_run / "manifest.sig").unlink()
    assert "without its other half" in signature(copied_run).words
    (copied_run / "manifest.json").unlink()
    assert signature(copied_run).outcome == "not checkable"
    assert signature(copied_run, key.with_name("me.key.pub")).outcome == "FAIL"


def test_secrets_and_places_are_not_in_a_manifest(copied_run, key):
    (copied_run / "local.json").write_text("{}")
    (copied_run / "secret.json").write_text("{}")
    sign_folder(copied_run, key)
    assert not {"local.json", "secret.json"} & set((copied_run / "manifest.json").read_text().split('"'))
    (copied_run / "local.json").unlink()
    assert signature(copied_run).outcome == "ok"


def test_no_key_is_overwritten_and_what_is_no_key_is_refused(copied_run, key, tmp_path):
    before = key.read_bytes()
    with pytest.raises(InvalidInputError, match="exists"):
        create_key(key)
    (tmp_path / "other.key.pub").write_text("mine")
    with pytest.raises(InvalidInputError, match="exists"):
        create_key(tmp_path / "other.key")
    assert not (tmp_path / "other.key").exists()
    assert key.read_bytes() == before
    for words in (
        ("sign", copied_run),
        ("sign",),
        ("sign", copied_run, "--key", tmp_path / "gone.key"),
        ("sign", copied_run, "--key", tmp_path / "me.key.pub"),
        ("sign", tmp_path, "--key", key),
        ("sign", "--new-key", tmp_path / "no" / "where.key"),
        ("check", copied_run, "--public-key", key),
    ):
        result = run_here(*words)
        assert result.returncode == 2, words
        assert result.stderr.count("\n") == 1, result.stderr
