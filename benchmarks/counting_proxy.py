"""Counts requests by verb on their way to a server, so that a queue's own words need not be taken for it.

Bytes go through as they are: signatures cover the host that the client spoke to, and that is what servers check. Runs
in a thread of its own; bound to loopback.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

from tests.servers._process import HOST, S3Server

__all__ = ["RequestCounter", "counting"]

_CHUNK = 1 << 16


class RequestCounter:
    """Finds the requests in what one client sends."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._data = bytearray()
        #: Bytes of the body that are still to come; in a chunked body, of this chunk.
        self._left = 0
        self._is_chunked = False

    def feed(self, data: bytes) -> None:
        """The next bytes, cut anyhow."""
        self._data += data
        while self._data and self._step():
            pass

    def _step(self) -> bool:
        """Whether there was something to take."""
        if self._left:
            taken = min(self._left, len(self._data))
            del self._data[:taken]
            self._left -= taken
            return True
        return self._chunk() if self._is_chunked else self._head()

    def _chunk(self) -> bool:
        end = self._data.find(b"\r\n")
        if end < 0:
            return False
        size = int(bytes(self._data[:end]).split(b";")[0] or b"0", 16)
        if size:
            self._left = end + 2 + size + 2
            return True
        last = self._data.find(b"\r\n\r\n", end)  # after it come trailers, if any, and an empty line
        if last < 0:
            return False
        del self._data[: last + 4]
        self._is_chunked = False
        return True

    def _head(self) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(self._data[:end]).split(b"\r\n")
        del self._data[: end + 4]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        method, target, _ = first.decode("latin-1").split(" ", 2)
        self._counts["LIST" if "list-type=2" in target or "versions" in target.partition("?")[2] else method] += 1
        self._is_chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._left = 0 if self._is_chunked else int(headers.get(b"content-length", b"0"))
        return True


@contextmanager
def counting(server: S3Server) -> Iterator[tuple[S3Server, Counter[str]]]:
    """The same server by way of a proxy, and the counts so far."""
    counts: Counter[str] = Counter()
    loop = asyncio.new_event_loop()
    target = urlsplit(server.endpoint)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection(target.hostname, target.port)
            await asyncio.gather(
                _pump(reader, to_writer, RequestCounter(counts)), _pump(to_reader, writer, None), return_exceptions=True
            )

    listening = loop.run_until_complete(asyncio.start_server(serve, HOST, 0))
    port = listening.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, name="counting-proxy", daemon=True)
    thread.start()
    try:
        yield replace(server, endpoint=f"http://{HOST}:{port}"), counts
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counter: RequestCounter | None) -> None:
    try:
        while data := await reader.read(_CHUNK):
            if counter is not None:
                counter.feed(data)
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
