"""How much a client may send, and for how long it may keep the server waiting.

uvicorn bounds neither the time a client takes for its headers nor for reading the answer; the protocol here does.
"""

__all__ = ["BodyBudget", "Limits", "Refused", "read_body", "timed_protocol"]

import asyncio
from dataclasses import dataclass
from typing import Any

import h11
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from securesgd.errors import InvalidInputError
from securesgd.validate import validate_count, validate_positive


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes. Raises: InvalidInputError for numbers that are not positive."""

    body_bytes: int = 5_000_000
    """Of one request."""
    buffered_bytes: int = 64_000_000
    """Of all requests that are being received or wait."""
    queue: int = 64
    """Requests that wait for the model; more are refused with 429."""
    connections: int = 512
    header_seconds: float = 10.0
    """For the whole header of a request."""
    body_seconds: float = 20.0
    """For the whole body of a request."""
    answer_seconds: float = 60.0
    """Until the model has answered, waiting included."""
    stop_seconds: float = 70.0
    """For requests under way, when the server is told to stop."""

    def __post_init__(self) -> None:
        for name in ("body_bytes", "buffered_bytes", "queue", "connections"):
            validate_count(name, getattr(self, name), at_least=1)
        for name in ("header_seconds", "body_seconds", "answer_seconds", "stop_seconds"):
            validate_positive(name, getattr(self, name))
        if self.buffered_bytes < self.body_bytes:
            raise InvalidInputError(
                f"buffered_bytes is {self.buffered_bytes}; valid: at least body_bytes, {self.body_bytes}"
            )

    @property
    def request_seconds(self) -> float:
        """How long a request may take in all, with reading the answer."""
        return self.body_seconds + 2 * self.answer_seconds


class Refused(Exception):  # noqa: N818 - an answer rather than an error
    """A request is answered with a status and a sentence, and without the model."""

    def __init__(self, status: int, words: str, *, close: bool = False, retry_seconds: int | None = None) -> None:
        super().__init__(words)
        self.status, self.words = status, words
        self.headers = {"Connection": "close"} if close else {}
        if retry_seconds is not None:
            self.headers["Retry-After"] = str(retry_seconds)


class BodyBudget:
    """The bytes of bodies that are in memory; used by one event loop."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, count: int) -> None:
        """Count bytes in. Raises: Refused, 429, if there would be too many."""
        if count > self._left:
            raise Refused(429, "too much is being received; try again", close=True, retry_seconds=1)
        self._left -= count

    def give_back(self, count: int) -> None:
        """Count bytes out."""
        self._left += count


async def read_body(request: Request, limits: Limits, budget: BodyBudget) -> bytes:
    """Return the body of a request, whose bytes are then counted in `budget`.

    Guarantee: no more than limits.body_bytes and one packet are read, whatever the header says.
    Raises: Refused: 413 if it is too large, 408 if it takes too long, 400 if it ends early, 429 if others have taken
    all memory.
    """
    too_large = Refused(413, f"the body is too large; valid: at most {limits.body_bytes:,} bytes", close=True)
    declared = request.headers.get("content-length", "0")  # h11 takes digits only
    if len(declared) > 18 or int(declared) > limits.body_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                if size + len(part) > limits.body_bytes:
                    raise too_large
                budget.take(len(part))
                size += len(part)
                parts.append(part)
    except TimeoutError:
        budget.give_back(size)
        raise Refused(408, f"the body took more than {limits.body_seconds:g} seconds", close=True) from None
    except ClientDisconnect:
        budget.give_back(size)
        raise Refused(400, "the body ended early", close=True) from None
    except BaseException:
        budget.give_back(size)
        raise
    return b"".join(parts)


def timed_protocol(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's protocol with a time limit on headers, and one on the whole of a request."""

    class TimedProtocol(H11Protocol):
        """A connection that is closed if its client is too slow."""

        _timer: asyncio.TimerHandle | None = None
        _timed: Any = None
        """The request that the timer is about; None: the header of the next one."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._restart(limits.header_seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._follow()

        def on_response_complete(self) -> None:
            self._timed = None
            self._restart(limits.header_seconds)
            super().on_response_complete()
            self._follow()  # the next request may have been received before

        def _follow(self) -> None:
            """Time the request under way, if there is a new one."""
            if self.cycle is not None and not self.cycle.response_complete and self._timed is not self.cycle:
                self._timed = self.cycle
                self._restart(limits.request_seconds)

        def _restart(self, seconds: float) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_later(seconds, self._expire)

        def _expire(self) -> None:
            if self.transport.is_closing():
                self.transport.abort()
            elif self._timed is None and self.conn.our_state is h11.IDLE:
                headers = [(b"connection", b"close"), (b"content-length", b"0")]
                self.transport.write(
                    self.conn.send(h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"))
                    + self.conn.send(h11.EndOfMessage())
                )
                self.transport.close()
            else:
                self.transport.abort()

    return TimedProtocol
