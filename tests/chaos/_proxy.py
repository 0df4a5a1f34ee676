"""A bad network: a TCP proxy that delays, cuts before the request or after it, and truncates answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from random import Random

from tests.servers._process import HOST

_CHUNK = 65536


class Proxy:
    """Between clients and one port of this machine, in a thread of its own. `harm` is the part of chunks it spoils."""

    def __init__(self, target: int, seed: int) -> None:
        self.harm = 0.0
        self.port = 0
        #: How often it did what.
        self.done: dict[str, int] = {}
        self._target = target
        self._rng = Random(seed)

    async def serve(self, started: threading.Event, over: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        async with server:
            await over.wait()
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, ours = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        pumps = [
            asyncio.ensure_future(self._pump(reader, ours, "request")),
            asyncio.ensure_future(self._pump(theirs, writer, "answer")),
        ]
        try:
            # One end of it ends both, as nobody half-closes here.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            ours.transport.abort()
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                match self._rng.choice(["delays", "cuts", "truncates"]) if self._rng.random() < self.harm else "":
                    case "delays":
                        self._count(f"{what} delayed")
                        # Some for longer than their senders wait.
                        await asyncio.sleep(self._rng.uniform(0.1, 3.0))
                    case "cuts":
                        self._count(f"{what} cut")
                        return
                    case "truncates":
                        self._count(f"{what} truncated")
                        sink.write(data[: len(data) // 2])
                        await sink.drain()
                        return
                sink.write(data)
                await sink.drain()

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


@contextlib.contextmanager
def proxy(target: int, seed: int) -> Iterator[Proxy]:
    """A proxy to `target`, which does no harm until it is told to."""
    made, started = Proxy(target, seed), threading.Event()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        loop.run_until_complete(made.serve(started, over))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(10)
        yield made
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
