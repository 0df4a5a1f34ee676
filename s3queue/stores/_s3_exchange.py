"""One request and its answer on a pooled connection of aiohttp's, without what its client does for browsers.

`aiohttp.ClientSession.request` costs three times what writing a small request and parsing its answer does: it builds
objects for cookies, redirects, compression, tracing and uploads, and a task for the body. Here the session's connector
gives the connection (its pool, its limits, its TLS), its parser reads the answer, and we write the bytes. The first
request to an origin goes through the session itself, and shows how aiohttp describes the connection that it wants. In
an aiohttp that is built in another way, all requests go through the session.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from yarl import URL

__all__ = ["Exchange", "Portions", "exchange_on"]

#: Bodies up to this are written in one go with the head; larger ones are the session's, which watches the flow.
_SMALL = 64 * 1024
#: Answers that are passed on before others get the loop.
_PORTION = 8
#: Headers that aiohttp would add, unsigned and unasked.
_NOT_ADDED = ("user-agent", "accept", "accept-encoding", "content-type")

Raw = tuple[int, Mapping[str, str], bytes]


class Portions:
    """Passes a few answers on in each turn of the event loop.

    A store may answer dozens of requests at once, and what each sets off costs some half a millisecond: without this,
    nobody else would have the loop until all were through.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: Passed on in this turn.
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait until it is our turn."""
        loop = asyncio.get_running_loop()
        if self._passed < self._most and not self._waiting:
            if not self._passed:
                loop.call_soon(self._next)
            self._passed += 1
            return
        place = loop.create_future()
        self._waiting.append(place)
        await place

    def _next(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < self._most:
            place = self._waiting.popleft()
            if not place.done():  # cancelled
                place.set_result(None)
                self._passed += 1
        if self._passed:
            asyncio.get_running_loop().call_soon(self._next)


class Exchange:
    """Requests on the connections of one of the SDK's sessions, which the SDK closes."""

    def __init__(self, sdk: aiohttp.ClientSession) -> None:
        #: By origin: a request as aiohttp made it. The connector finds, or opens, a connection by it.
        self._templates: dict[URL, aiohttp.ClientRequest] = {}
        self._portions = Portions(_PORTION)
        self._session = aiohttp.ClientSession(
            connector=sdk.connector,
            connector_owner=False,
            timeout=sdk.timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
            request_class=_recorded_in(self._templates),
        )

    async def send(
        self, method: str, origin: URL, target: str, headers: Mapping[str, str], body: bytes, *, proxy: Any = None
    ) -> Raw:
        """Status, headers and body of the answer; `target` is path and query, encoded. Raises what aiohttp raises."""
        template = self._templates.get(origin)
        if template is None or proxy is not None or len(body) > _SMALL:
            return await self._through_session(method, origin, target, headers, body, proxy)
        return await self._on_connection(template, method, _written(method, target, headers, body))

    async def _on_connection(self, template: aiohttp.ClientRequest, method: str, request: bytes) -> Raw:
        connector, timeout = self._session.connector, self._session.timeout
        assert connector is not None
        connection = await connector.connect(template, traces=[], timeout=timeout)
        try:
            protocol: Any = connection.protocol
            protocol.set_response_params(
                skip_payload=method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                read_timeout=timeout.sock_read,
            )
            protocol.transport.write(request)
            message, payload = await protocol.read()
            while 100 <= message.code < 200:
                message, payload = await protocol.read()
            body = await payload.read()
        except BaseException:
            connection.close()  # half an answer must not be the next request's
            raise
        connection.release()
        await self._portions.turn()
        return message.code, message.headers, body

    async def _through_session(
        self, method: str, origin: URL, target: str, headers: Mapping[str, str], body: bytes, proxy: Any
    ) -> Raw:
        url = URL(f"{origin}".rstrip("/") + target, encoded=True)
        async with self._session.request(
            method,
            url,
            headers=headers,
            data=io.BytesIO(body) if len(body) > _SMALL else body or None,
            allow_redirects=False,
            proxy=proxy,
        ) as response:
            return response.status, response.headers, await response.read()


def _written(method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The request's bytes. Raises `ValueError` for a header that would end its line, and so be another one."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    if body or method in ("PUT", "POST"):
        lines.append(f"content-length: {len(body)}\r\n")
    head = f"{method} {target} HTTP/1.1\r\n{''.join(lines)}"
    if head.count("\n") != len(lines) + 1 or head.count("\r") != len(lines) + 1 or "\0" in head:
        raise ValueError("a header of the request has a line end in it")
    return f"{head}\r\n".encode("latin-1") + body


def _recorded_in(templates: dict[URL, aiohttp.ClientRequest]) -> type[aiohttp.ClientRequest]:
    class Recorded(aiohttp.ClientRequest):
        async def send(self, conn: Any) -> Any:
            if hasattr(conn.protocol, "set_response_params"):
                templates[self.url.origin()] = self
            return await super().send(conn)

    return Recorded


#: One for each of the SDK's sessions, for as long as that lives.
_exchanges: WeakKeyDictionary[aiohttp.ClientSession, Exchange] = WeakKeyDictionary()


def exchange_on(sdk: aiohttp.ClientSession) -> Exchange:
    """The exchange on this session's connections."""
    if sdk not in _exchanges:
        _exchanges[sdk] = Exchange(sdk)
    return _exchanges[sdk]
