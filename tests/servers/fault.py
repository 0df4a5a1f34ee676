"""A scripted S3 server on loopback, for what no real server does on demand.

It keeps objects and honours conditions like a small S3. Rules change single answers: each is used a number of times, in
the order given, for requests that it matches.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Self
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

from tests.servers._process import HOST, S3Server


@dataclass(slots=True)
class Request:
    """What a client sent."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Reply:
    """What the server answers. `cut` sends that many bytes of the body, and closes the connection."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    #: Close the connection without an answer.
    drop: bool = False


@dataclass(slots=True)
class Rule:
    """Answer requests of `method` for keys that match, `times` times; after the server did them, if `apply`."""

    method: str
    key: re.Pattern[str]
    reply: Reply | None
    times: int
    apply: bool
    hold: asyncio.Event | None


def error(status: int, code: str, message: str = "scripted") -> Reply:
    """An S3 error in XML."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Reply(status, text.encode(), {"Content-Type": "application/xml"})


class FaultServer:
    """Use it as ``async with``; `rule` scripts it, `requests` is what came."""

    def __init__(self, *, bare_etags: bool = False, ignore_conditions: bool = False) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.requests: list[Request] = []
        #: Looked at before everything else; for what a rule cannot say.
        self.intercept: Callable[[Request], Reply | None] = lambda request: None
        self._rules: list[Rule] = []
        self._bare_etags = bare_etags
        self._ignore_conditions = ignore_conditions
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._clients):
            writer.close()
        await self._server.wait_closed()

    @property
    def target(self) -> S3Server:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return S3Server("fault", f"http://{HOST}:{port}", "key", "secret", "bucket")

    def rule(
        self,
        method: str,
        key: str,
        reply: Reply | None = None,
        *,
        times: int = 1,
        apply: bool = False,
        hold: asyncio.Event | None = None,
    ) -> None:
        """Script requests; without `reply` they are only held until `hold` is set."""
        self._rules.append(Rule(method, re.compile(key), reply, times, apply, hold))

    def sent(self, method: str, key: str = "") -> list[Request]:
        """The requests so far of this method whose key matches."""
        return [request for request in self.requests if request.method == method and re.search(key, request.key)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while (request := await _read(reader, writer)) is not None:
                self.requests.append(request)
                reply = await self._answer(request)
                if reply.drop or not await _write(writer, request, reply):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _answer(self, request: Request) -> Reply:
        special = self.intercept(request)
        if special is not None:
            return special
        for rule in self._rules:
            if rule.times and rule.method == request.method and rule.key.search(request.key):
                rule.times -= 1
                if rule.hold is not None:
                    await rule.hold.wait()
                if rule.apply or rule.reply is None:
                    normal = self._normal(request)
                return rule.reply if rule.reply is not None else normal
        return self._normal(request)

    def _normal(self, request: Request) -> Reply:
        if request.key == "" and request.method == "GET":
            return self._list(request.query)
        if request.key == "" and request.method == "POST":
            return self._delete_many(request.body)
        do: Mapping[str, Callable[[Request], Reply]] = {
            "PUT": self._put, "GET": self._get, "HEAD": self._get, "DELETE": self._delete,
        }  # fmt: skip
        return do[request.method](request)

    def _etag(self, data: bytes) -> str:
        return hashlib.md5(data, usedforsecurity=False).hexdigest()

    def _put(self, request: Request) -> Reply:
        current = self.objects.get(request.key)
        if not self._ignore_conditions:
            if request.headers.get("if-none-match") == "*" and current is not None:
                return error(412, "PreconditionFailed")
            match = request.headers.get("if-match")
            if match is not None and current is None:
                return error(404, "NoSuchKey")
            if match is not None and current is not None and match != self._spelled(self._etag(current[0])):
                return error(412, "PreconditionFailed")
        self.objects[request.key] = (request.body, time.time())
        return Reply(200, headers={"ETag": f'"{self._etag(request.body)}"'})

    def _spelled(self, etag: str) -> str:
        return etag if self._bare_etags else f'"{etag}"'

    def _get(self, request: Request) -> Reply:
        if request.key not in self.objects:
            return Reply(404) if request.method == "HEAD" else error(404, "NoSuchKey")
        data, modified = self.objects[request.key]
        headers = {"ETag": f'"{self._etag(data)}"', "Last-Modified": formatdate(modified, usegmt=True)}
        return Reply(200, data, headers)

    def _delete(self, request: Request) -> Reply:
        self.objects.pop(request.key, None)
        return Reply(204)

    def _delete_many(self, body: bytes) -> Reply:
        for key in re.findall(r"<Key>(.*?)</Key>", body.decode(), re.DOTALL):
            self.objects.pop(html.unescape(key), None)
        return Reply(200, b"<?xml version='1.0'?><DeleteResult></DeleteResult>")

    def _list(self, query: Mapping[str, str]) -> Reply:
        after = query.get("continuation-token") or query.get("start-after") or ""
        keys = sorted(k for k in self.objects if k.startswith(query.get("prefix", "")) and k > after)
        page = keys[: int(query.get("max-keys", "1000"))]
        return self.listing_of(page, page[-1] if len(page) < len(keys) else None)

    def listing_of(self, keys: Sequence[str], token: str | None) -> Reply:
        """A page of a listing: these objects, and where to go on."""
        items = [(key, self._etag(data), len(data), at) for key in keys for data, at in [self.objects[key]]]
        return listing(items, token=token)


def listing(items: list[tuple[str, str, int, float]], *, token: str | None, truncated: bool | None = None) -> Reply:
    """A page of a listing, of (key, ETag, size, modified)."""
    cut = token is not None if truncated is None else truncated
    contents = "".join(
        f"<Contents><Key>{quote(key)}</Key><ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size>"
        f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(modified))}</LastModified></Contents>"
        for key, etag, size, modified in items
    )
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    text = (
        f"<?xml version='1.0'?><ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{str(cut).lower()}"
        f"</IsTruncated>{more}{contents}</ListBucketResult>"
    )
    return Reply(200, text.encode(), {"Content-Type": "application/xml"})


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode().split(" ", 2)
    headers: dict[str, str] = {}
    while (header := (await reader.readline()).decode("latin-1").strip()) != "":
        name, _, value = header.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect") == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    path, _, query = target.partition("?")
    key = unquote(path).lstrip("/").partition("/")[2]
    return Request(method, key, {k: v[0] for k, v in parse_qs(query, keep_blank_values=True).items()}, headers, body)


async def _write(writer: asyncio.StreamWriter, request: Request, reply: Reply) -> bool:
    headers = {"Date": formatdate(usegmt=True), "Content-Length": str(len(reply.body)), **reply.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
    writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{head}\r\n".encode("latin-1"))
    if request.method != "HEAD" and reply.status not in (204, 304):
        writer.write(reply.body[: reply.cut])
    await writer.drain()
    return reply.cut is None
