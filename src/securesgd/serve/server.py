"""The process that serves: its socket, its signals and its end."""

__all__ = ["build_server", "is_loopback", "listening_socket", "serve"]

import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from securesgd.errors import InvalidInputError
from securesgd.serve.answers import ServedRun
from securesgd.serve.app import LOOPBACK, build_app
from securesgd.serve.limits import Limits, timed_protocol
from securesgd.validate import validate_count

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """uvicorn's server, for which being told to stop is a regular end instead of a death by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def is_loopback(host: str) -> bool:
    """Return whether a host is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections; port 0 is any free one.

    Raises: InvalidInputError if the address cannot be used.
    """
    validate_count("port", port, at_least=0, at_most=65_535)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(f"host is {host!r}: {error}; valid: an address of this machine") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # before the address is announced, so that nobody who reads it is refused
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise InvalidInputError(f"port {port} of {host} cannot be used ({reason}); give another --port") from None
    return listening


def build_server(served: ServedRun, limits: Limits, *, hosts: tuple[str, ...] = LOOPBACK) -> uvicorn.Server:
    """Return a server of the run, to be run with a socket; setting its `should_exit` is as SIGTERM."""
    config = uvicorn.Config(
        build_app(served, limits, hosts=hosts),
        http=timed_protocol(limits),
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=int(limits.stop_seconds) + 1,
    )
    return _Server(config)


def serve(
    served: ServedRun,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve a run until SIGTERM or Ctrl-C; requests under way are then finished, and no others taken.

    `on_start` gets the address of the page.
    Raises: InvalidInputError if the address cannot be used.
    """
    with listening_socket(host, port) as listening:
        server = build_server(served, limits or Limits(), hosts=(*LOOPBACK, host) if is_loopback(host) else ("*",))
        if on_start is not None:
            name, number = listening.getsockname()[:2]
            on_start(f"http://[{name}]:{number}/" if ":" in name else f"http://{name}:{number}/")
        server.run(sockets=[listening])
