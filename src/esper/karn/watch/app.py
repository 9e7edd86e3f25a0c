"""The application: the page's files, the views of runs as JSON, and streams of what is new. It reads; nothing can be changed through it."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from esper.karn import views
from esper.karn.record import Record
from esper.karn.watch.library import Library
from esper.karn.watch.security import Access, Guard
from esper.karn.watch.streams import Streams
from esper.karn.watch.watched import Position, Watched
from esper.leyline.errors import EsperError

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
LIMIT = 200
"""Events of the feed that one request may ask for."""

VIEWS: dict[str, Callable[[Record], Any]] = {
    "hosts": views.hosts,
    "lives": views.lives,
    "actions": views.actions,
    "rounds": views.rounds,
    "entropies": views.entropies,
    "rewards": views.rewards,
    "calibration": views.calibration,
    "blueprints": views.blueprints,
    "arms": views.arms,
    "distribution": views.distribution,
    "summary": lambda record: record.summary,
}
"""What is asked for without any argument."""


class Page:
    """The routes, over a library of runs."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.streams = Streams(library)
        # Known by name before anything is asked for, so that no name leads out of the folder.
        self._files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}

    def routes(self) -> list[Route]:
        """Every address that there is."""
        run = "/api/run/{key:path}"
        return [
            Route("/", self.index),
            Route("/favicon.ico", self.favicon),
            Route("/static/{name:path}", self.static),
            Route("/api/runs", self.runs),
            Route("/api/stream", self.runs_stream),
            Route(f"{run}/stream", self.run_stream),
            Route(f"{run}/overview", self.overview),
            Route(f"{run}/host/{{number:int}}", self.host),
            Route(f"{run}/decision/{{number:int}}/{{epoch:int}}", self.decision),
            Route(f"{run}/feed", self.feed),
            Route(f"{run}/{{view:str}}", self.view),
        ]

    async def index(self, request: Request) -> Response:
        """The page."""
        return self._file("index.html")

    async def favicon(self, request: Request) -> Response:
        """Browsers ask for it whether or not the page names one."""
        return self._file("favicon.svg")

    async def static(self, request: Request) -> Response:
        """One of the page's files."""
        return self._file(request.path_params["name"])

    async def runs(self, request: Request) -> Response:
        """All runs at a glance."""
        return JSONResponse(await run_in_threadpool(self.library.cards))

    async def overview(self, request: Request) -> Response:
        """One run at a glance, and the position from which its stream goes on."""
        watched = await self._watched(request)
        await run_in_threadpool(watched.refresh)
        return JSONResponse(await run_in_threadpool(watched.overview))

    async def view(self, request: Request) -> Response:
        """A view that needs no argument."""
        name = request.path_params["view"]
        if name not in VIEWS:
            raise HTTPException(404, f"there is no view {name!r} of a run")
        return await self._answer(request, name, VIEWS[name])

    async def host(self, request: Request) -> Response:
        """Everything that is recorded of one host."""
        number = request.path_params["number"]
        return await self._answer(request, ("host", number), lambda record: views.host(record, number))

    async def decision(self, request: Request) -> Response:
        """One decision: what was seen, what was legal, what was done, what came of it."""
        number, epoch = request.path_params["number"], request.path_params["epoch"]
        return await self._answer(request, ("decision", number, epoch), lambda record: views.decision(record, number, epoch))

    async def feed(self, request: Request) -> Response:
        """Events as lines for people, newest first."""
        query = request.query_params
        before, limit, host = _number(query.get("before")), _number(query.get("limit")), _number(query.get("host"))
        kinds, text = tuple(query.getlist("kind")), query.get("text", "")
        limit = LIMIT if limit is None else min(limit, LIMIT)
        name = ("feed", before, limit, kinds, host, text)
        make = lambda record: views.feed(record, before=before, limit=limit, kinds=kinds, host=host, text=text)  # noqa: E731
        return await self._answer(request, name, make)

    async def run_stream(self, request: Request) -> Response:
        """What is new in a run, for as long as someone listens."""
        seen = request.headers.get("last-event-id") or request.query_params.get("from", "")
        return _stream(self.streams.of_run(await self._watched(request), Position.parse(seen)))

    async def runs_stream(self, request: Request) -> Response:
        """What is new in the list of runs."""
        return _stream(self.streams.of_runs())

    async def _watched(self, request: Request) -> Watched:
        return await run_in_threadpool(self.library.get, request.path_params["key"])

    async def _answer(self, request: Request, name: object, make: Callable[[Record], Any]) -> Response:
        watched = await self._watched(request)
        return Response(await run_in_threadpool(watched.view, name, make), media_type="application/json")

    def _file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404, "there is no such file")
        kind = TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "text/plain"
        return Response(self._files[name], media_type=kind)


def make_app(library: Library, access: Access) -> tuple[Guard, Streams]:
    """The application, and its streams, which whoever runs it ends."""
    page = Page(library)
    handlers: Any = {HTTPException: _http_problem, EsperError: _problem}
    return Guard(Starlette(routes=page.routes(), exception_handlers=handlers), access), page.streams


async def _problem(request: Request, error: EsperError) -> Response:
    return JSONResponse({"error": str(error)}, 404)


async def _http_problem(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code)


def _number(text: str | None) -> int | None:
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise HTTPException(400, f"{text!r} is not a number")
    return int(text)


def _stream(content: Any) -> Response:
    return StreamingResponse(content, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
