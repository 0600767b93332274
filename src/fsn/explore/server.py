"""The page's server: this computer only, short questions only, every refusal one sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from ..errors import UserError
from ..report.html import asset, page
from .explorer import Explorer

LARGEST_BODY = 64_000
"""Bytes of a question; the longest text a model reads is far below."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
CutField = tuple[Annotated[int, Field(ge=0, lt=1000)], Literal["present", "successor"]]
"""The layer and the field: see :data:`explorer.Cut`."""
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Question(BaseModel):
    text: str
    cuts: Annotated[list[CutField], Field(max_length=200)] = []


class Look(Question):
    at: Annotated[int, Field(ge=0, lt=1_000_000)]


def refuse(request: Request) -> JSONResponse | None:
    """The answer to what does not come from the page itself: another name for this computer, another page, or a body
    that is too large or does not say its size."""
    headers = request.headers
    host = headers.get("host", "")
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.split(":")[0]
    if name not in LOOPBACK:
        return sentence("this page is served to this computer only; open it as http://127.0.0.1", 403)
    if headers.get("origin", f"http://{host}") != f"http://{host}":
        return sentence("questions are answered to the page itself only, not to other pages", 403)
    size = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not size.isdecimal() or int(size) > LARGEST_BODY:
        return sentence("this text is too long: the models read a few hundred symbols; shorten it", 413)
    return None


def sentence(text: str, status: int) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status)


def make_app(explorer: Explorer) -> FastAPI:
    """The page at /, and what it asks: /read for a text, /look for one of its symbols."""
    app = FastAPI(title="fsn explore", docs_url=None, redoc_url=None, openapi_url=None)
    html = render(explorer.about())

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        response = refuse(request) or await answer(request)
        response.headers.update(HEADERS)
        return response

    @app.get("/", response_class=HTMLResponse)
    def index() -> str:
        return html

    @app.get("/favicon.ico")
    def icon() -> Response:
        return Response(status_code=204)

    @app.post("/read")
    def read(question: Question) -> JSONResponse:
        return JSONResponse(explorer.read(question.text, question.cuts))

    @app.post("/look")
    def look(question: Look) -> JSONResponse:
        return JSONResponse(explorer.look(question.text, question.at, question.cuts))

    @app.exception_handler(UserError)
    def refused(request: Request, error: UserError) -> JSONResponse:
        return sentence(str(error), 400)

    @app.exception_handler(RequestValidationError)
    def senseless(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:] if isinstance(part, str | int))[:80]
        return sentence(f"this question makes no sense ({where or 'body'}: {first['msg'][:200]})", 400)

    @app.exception_handler(HTTPException)
    def elsewhere(request: Request, error: HTTPException) -> JSONResponse:
        return sentence("there is nothing here; the page is at /", error.status_code)

    return app


def render(about: dict[str, Any]) -> str:
    """The page with what it has to know inside."""
    here = "fsn.explore"
    return page(
        "fsn explore",
        asset(here, "page.html"),
        data=about,
        styles=[asset(here, "page.css")],
        scripts=[asset(here, "page.js")],
        description="Two models at work on what you type",
        policy=HEADERS["content-security-policy"].split("; frame-ancestors")[0],
    )
