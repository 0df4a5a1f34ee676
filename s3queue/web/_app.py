"""The dashboard as an ASGI application: pages, JSON, actions and metrics over one `SharedWatch`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from s3queue._backend import Backend
from s3queue._errors import NotFound, S3QueueError
from s3queue._model import FailedGroup
from s3queue._options import QueueOptions
from s3queue._queue import WorkQueue
from s3queue._runtime import Runtime
from s3queue._workspace import Workspace
from s3queue.web._guard import COOKIE, Guard
from s3queue.web._metrics import Exposition
from s3queue.web._watch import SharedWatch

__all__ = ["dashboard"]

#: Failed groups on a page, and how many of a group's paths are named there.
_PAGE = 20
_PATHS_MOST = 20
#: The most that a login form may send.
_FORM_MOST = 4096
_WINDOWS = (0, 900, 3600, 21_600, 86_400)
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def dashboard(
    queue: WorkQueue | Backend,
    *,
    allow_actions: bool = False,
    token: str | None = None,
    hosts: Iterable[str] | None = None,
    every: float = 5.0,
    options: QueueOptions | None = None,
    runtime: Runtime | None = None,
) -> ASGIApp:
    """An ASGI application that shows a workspace: serve it, or mount it (``app.mount("/queue", dashboard(queue))``).

    It looks at the store on its own, on the queue's or backend's client, only while somebody looks at it, and at most
    once in `every` seconds however many do; it needs no lifespan. `allow_actions` lets viewers retry failed groups.

    With a `token` (16 printable ASCII characters or more), viewers sign in with it, and programs send it as
    ``Authorization: Bearer``. Without one it answers only requests to this machine's loopback names, unless `hosts`
    says what others it is reached by (``"*"`` for any): then whoever reaches it sees everything.

    Raises `ConfigurationError` for a token that is too short.
    """
    backend = queue.backend if isinstance(queue, WorkQueue) else queue
    workspace = Workspace(backend.store, options=options, runtime=runtime)
    app = _Dashboard(SharedWatch(workspace, every=every), allow_actions=allow_actions)
    guard = Guard(app.starlette, token=token, hosts=hosts)
    app.guard = guard
    return guard


class _Dashboard:
    """The routes."""

    guard: Guard

    def __init__(self, watch: SharedWatch, *, allow_actions: bool) -> None:
        self._watch = watch
        self._allow_actions = allow_actions
        self._exposition = Exposition(watch)
        static = files("s3queue.web") / "static"
        self._files = {file.name: file.read_bytes() for file in static.iterdir()}
        self.starlette = Starlette(
            routes=[
                Route("/", self.page),
                Route("/login", self.login, methods=["GET", "POST"]),
                Route("/static/{name}", self.static),
                Route("/metrics", self.metrics),
                Route("/api/state", self.state),
                Route("/api/failures", self.failures),
                Route("/api/groups/{group}", self.group),
                Route("/api/groups/{group}/retry", self.retry, methods=["POST"]),
            ],
            exception_handlers={S3QueueError: _told},
        )

    async def page(self, request: Request) -> Response:
        """The page, which says nothing of the workspace itself."""
        return self._file("index.html")

    async def static(self, request: Request) -> Response:
        """What the page is made of."""
        name = request.path_params["name"]
        return self._file(name) if name in self._files else Response(status_code=404)

    def _file(self, name: str) -> Response:
        return Response(self._files[name], media_type=_TYPES[name.rpartition(".")[2]])

    async def login(self, request: Request) -> Response:
        """Trade the token for a cookie that only this site's own pages send."""
        if request.method != "POST":
            return self._file("login.html")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM_MOST:
                return Response(status_code=413)
        form = parse_qs(body.decode("utf-8", "replace"))
        if not self.guard.accepts(form.get("token", [""])[0]):
            page = self._files["login.html"].replace(b"<!-- said -->", b'<p role="alert">That is not the token.</p>')
            return Response(page, 403, media_type="text/html")
        answer = RedirectResponse("./", 303)
        secure = request.url.scheme == "https"
        path = request.scope.get("root_path") or "/"
        answer.set_cookie(COOKIE, self.guard.cookie, path=path, httponly=True, samesite="strict", secure=secure)
        return answer

    async def state(self, request: Request) -> Response:
        """What is known, at once; then, in the same task, the next look, if it is time for one."""
        window = request.query_params.get("window", "3600")
        told = self._watch.told(int(window) if window in map(str, _WINDOWS) else 3600)
        return JSONResponse({**told, "actions": self._allow_actions}, background=BackgroundTask(self._watch.refresh))

    async def failures(self, request: Request) -> Response:
        """A page of failed groups."""
        offset = request.query_params.get("offset", "0")
        start = int(offset) if offset.isascii() and offset.isdigit() and len(offset) < 10 else 0
        found = await self._watch.failures(start, _PAGE)
        total = len(self._watch.picture.failed) if self._watch.picture is not None else 0
        return JSONResponse(
            {"total": total, "offset": start, "page": _PAGE, "groups": [_failure(one) for one in found]}
        )

    async def group(self, request: Request) -> Response:
        """Every failed attempt at one group, with tracebacks."""
        attempts = await self._watch.history(request.path_params["group"])
        return JSONResponse({"attempts": [dataclasses.asdict(attempt) for attempt in attempts]})

    async def retry(self, request: Request) -> Response:
        """Make one failed group claimable."""
        if not self._allow_actions:
            return JSONResponse({"error": "actions are not allowed here: start it with --allow-actions"}, 403)
        if request.headers.get("x-s3queue") != "1":
            return JSONResponse({"error": "an action needs the header X-S3Queue: 1"}, 403)
        revived = await self._watch.retry(request.path_params["group"])
        return JSONResponse({"retried": revived}, background=BackgroundTask(self._watch.refresh))

    async def metrics(self, request: Request) -> Response:
        """For Prometheus, as of now. While the store is in trouble the answer does not wait for it."""
        background = None
        if self._watch.error:
            background = BackgroundTask(self._watch.refresh)
        else:
            await self._watch.wait_for_look()
        text, content_type = self._exposition.render(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type}, background=background)


async def _told(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, NotFound) else 502
    return JSONResponse({"error": " ".join(str(error).split())}, status)


def _failure(group: FailedGroup) -> dict[str, Any]:
    last = group.last
    return {
        "hash": group.hash,
        "dead": group.dead,
        "failures": group.failures,
        "age": round(group.age, 1),
        "paths": len(group.work_paths),
        "done": group.done,
        "failed": [dataclasses.asdict(path) for path in group.paths[:_PATHS_MOST]],
        "named": list(group.work_paths[:_PATHS_MOST]) if not group.paths else [],
        "last": None if last is None else {"at": last.at, "kind": last.kind, "error": last.error, "owner": last.owner},
    }
