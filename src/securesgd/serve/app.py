"""The addresses of the service: what may be asked, and what comes back when something is wrong.

======================  ==============================================================================================
GET /                   the page for people
GET /docs               the interface in words, from /openapi.json; both pages load nothing from elsewhere
GET /healthz, /readyz   whether the process lives; whether it takes questions
GET /api/run            classes, shape of inputs, privacy statement, norm and draws
POST /api/predict       an image (PNG or JPEG), {"pixels": …} or {"row": {column: value}}: class, radius and votes
POST /api/attack        the same: the worst input found inside the radius, and the nearest outside that wins
======================  ==============================================================================================

Errors are {"error": one line}. Files of the run folder are not served.
"""

__all__ = ["build_app"]

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from securesgd import __version__
from securesgd.errors import InvalidInputError, printable
from securesgd.serve.answers import Answer, Question, ServedRun
from securesgd.serve.inputs import IMAGE_TYPES, JSON_TYPE
from securesgd.serve.limits import BodyBudget, Limits, Refused, read_body
from securesgd.serve.schemas import ATTACK, BODY, DESCRIPTION, ERROR, PREDICTION
from securesgd.serve.worker import Busy, ModelWorker

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_ALWAYS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "content": {"application/json": {"schema": ERROR}}}
    for status, words in {
        400: "The input cannot be used; the error says what would be valid.",
        408: "The body took too long.",
        413: "The body is too large.",
        415: "The body is of another type.",
        429: "Too many wait; Retry-After says when to try again.",
        503: "The server is stopping.",
        504: "The model did not answer in time.",
    }.items()
}


def build_app(served: ServedRun, limits: Limits | None = None, *, hosts: tuple[str, ...] = LOOPBACK) -> FastAPI:
    """Return the service of a run. `hosts` are the names by which it may be called, "*" for any.

    A server on this machine alone that answered to any name could be read by web pages whose name is made to point
    here (DNS rebinding).
    """
    limits = limits or Limits()
    worker: ModelWorker[Question, Answer] = ModelWorker(served.answers, waiting=limits.queue)
    budget = BodyBudget(limits.buffered_bytes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.close, limits.stop_seconds)

    app = FastAPI(
        title="securesgd", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Predictions of a privately trained model, each with a proven radius.",
    )  # fmt: skip
    if "*" not in hosts:
        app.add_middleware(_OnlyByName, hosts=hosts)
    _answer_errors(app)

    async def ask(request: Request, verb: Literal["predict", "attack"], invert: bool, picture: bool) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*IMAGE_TYPES, JSON_TYPE):
            valid = ", ".join((*IMAGE_TYPES, JSON_TYPE))
            raise Refused(415, f"the body is of type {printable(kind[:80])!r}; valid: {valid}", close=True)
        if not worker.alive:
            raise Refused(503, "the server is stopping", close=True)
        body = await read_body(request, limits, budget)
        try:
            future = worker.submit(Question(verb=verb, body=body, content_type=kind, invert=invert, picture=picture))
            answer = await asyncio.wait_for(asyncio.wrap_future(future), limits.answer_seconds)
        except Busy:
            raise Refused(429, "too many requests wait for the model; try again", retry_seconds=1) from None
        except TimeoutError:
            raise Refused(504, f"the model did not answer within {limits.answer_seconds:g} seconds") from None
        finally:
            budget.give_back(len(body))
        return JSONResponse(answer, headers=_ALWAYS)

    @app.get("/healthz", summary="Whether the process lives.")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"}, headers=_ALWAYS)

    @app.get("/readyz", summary="Whether questions are taken.", responses={503: _REFUSALS[503]})
    async def readyz() -> Response:
        if not worker.alive:
            raise Refused(503, "the server is stopping")
        return JSONResponse({"status": "ready"}, headers=_ALWAYS)

    description = {**served.description(), "body_bytes": limits.body_bytes}

    @app.get("/api/run", summary="What is served.", responses=_success(DESCRIPTION))
    async def run() -> Response:
        return JSONResponse(description, headers=_ALWAYS)

    @app.post(
        "/api/predict", summary="The class of an input, and the radius proven for it.",
        responses={**_success(PREDICTION), **_REFUSALS}, openapi_extra={"requestBody": BODY},
    )  # fmt: skip
    async def predict(request: Request, invert: bool = False, picture: bool = False) -> Response:
        return await ask(request, "predict", invert, picture)

    @app.post(
        "/api/attack", summary="The worst input inside the radius, and the nearest one outside that wins.",
        responses={**_success(ATTACK), **_REFUSALS}, openapi_extra={"requestBody": BODY},
    )  # fmt: skip
    async def attack(request: Request, invert: bool = False) -> Response:
        return await ask(request, "attack", invert, False)

    for path, name in (("/", "page.html"), ("/docs", "docs.html")):
        app.add_api_route(path, _page(name), include_in_schema=False)
    return app


class _OnlyByName:
    """Refuses requests that call the server by another name than one of `hosts`."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app, self._hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            names = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:]+)(:[0-9]+)?", names[0].lower()) if len(names) == 1 else None
            if match is None or match[1] not in self._hosts:
                words = f"the host is another than valid here: {', '.join(sorted(self._hosts))}"
                await JSONResponse({"error": words}, status_code=400, headers=_ALWAYS)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _success(schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": "The answer.", "content": {"application/json": {"schema": schema}}}}


def _page(name: str) -> Callable[[], Any]:
    """Return the handler of a page of the package, which may run its own script and call this server, nothing else."""
    text = files("securesgd.serve").joinpath(name).read_text("utf-8")
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    ]
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    async def page() -> Response:
        return HTMLResponse(text, headers={**_ALWAYS, "Content-Security-Policy": policy})

    return page


def _answer_errors(app: FastAPI) -> None:
    """Make every error one line of JSON; what was not foreseen is logged, and says nothing of this machine."""

    def error(status: int, words: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": words}, status_code=status, headers={**_ALWAYS, **(headers or {})})

    @app.exception_handler(Refused)
    async def refused(_: Request, reason: Refused) -> Response:
        return error(reason.status, reason.words, reason.headers)

    @app.exception_handler(InvalidInputError)
    async def invalid(_: Request, reason: InvalidInputError) -> Response:
        return error(400, printable(str(reason)))

    @app.exception_handler(RequestValidationError)
    async def query(_: Request, reason: RequestValidationError) -> Response:
        names = ", ".join(str(problem["loc"][-1]) for problem in reason.errors())
        return error(400, printable(f"the parameters {names} cannot be used; valid: true or false"))

    @app.exception_handler(HTTPException)
    async def http(_: Request, reason: HTTPException) -> Response:
        return error(reason.status_code, str(reason.detail), dict(reason.headers or {}))

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, reason: Exception) -> Response:
        logging.getLogger("securesgd.serve").error("%s: %s", type(reason).__name__, reason)
        return error(500, "the server could not answer; its log says why")
