import pytest

from tests.data.web import Web, tiny_archives


@pytest.fixture(autouse=True)
def own_places(monkeypatch, tmp_path):
    """No test looks into, or writes to, the user's data."""
    monkeypatch.delenv("SECURESGD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def web():
    web = Web(tiny_archives())
    server = web.start()
    yield web
    server.shutdown()
    server.server_close()
