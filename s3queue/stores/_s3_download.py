"""Large objects of any bucket, a piece at a time: for what does not fit into memory, as the port's `get` must."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from s3queue._errors import Unanswered
from s3queue._options import QueueOptions
from s3queue.stores._s3 import s3_client
from s3queue.stores._s3_errors import mapped

__all__ = ["Downloads", "Remote", "open_downloads"]

_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """An object as it was when it was looked at."""

    bucket: str
    key: str
    #: Bytes.
    size: int
    etag: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Downloads:
    """Reads objects on one client. Every step has a deadline of `timeout` seconds; nothing is tried again here."""

    def __init__(self, client: Any, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    async def look(self, bucket: str, key: str) -> Remote:
        """What there is to read. Raises `NotFound` and the store's other errors."""
        where = f"s3://{bucket}/{key}"
        with mapped("HEAD", where), anyio.move_on_after(self._timeout):
            answer = await self._client.head_object(Bucket=bucket, Key=key)
            return Remote(bucket=bucket, key=key, size=answer["ContentLength"], etag=answer["ETag"])
        raise Unanswered(f"{where}: no answer to HEAD within {self._timeout:g} s")

    async def read(self, remote: Remote) -> AsyncGenerator[bytes, None]:
        """Its bytes, in order, in pieces of at most 1 MiB.

        Raises the store's errors; `Unanswered` for a body that breaks off or stands still, and for an object that is
        not any more what `look` saw.
        """
        async with self._opened(remote) as stream:
            left = remote.size
            while piece := await self._piece(stream, remote):
                left -= len(piece)
                yield piece
        if left:
            raise Unanswered(f"{remote}: the answer to GET broke off {left} bytes before its end")

    @asynccontextmanager
    async def _opened(self, remote: Remote) -> AsyncIterator[Any]:
        answer = None
        with mapped("GET", str(remote)), anyio.move_on_after(self._timeout):
            answer = await self._client.get_object(Bucket=remote.bucket, Key=remote.key)
        if answer is None:
            raise Unanswered(f"{remote}: no answer to GET within {self._timeout:g} s")
        async with answer["Body"] as stream:
            if (answer["ContentLength"], answer["ETag"]) != (remote.size, remote.etag):
                raise Unanswered(f"{remote}: the object changed while it was being read")
            yield stream

    async def _piece(self, stream: Any, remote: Remote) -> bytes:
        try:
            with anyio.move_on_after(self._timeout):
                piece: bytes = await stream.read(_PIECE)
                return piece
        except Exception as error:
            # A connection that breaks inside a body: the HTTP library's own errors come through as they are.
            raise Unanswered(f"{remote}: the answer to GET broke off ({type(error).__name__}: {error})") from error
        raise Unanswered(f"{remote}: the answer to GET stood still for {self._timeout:g} s")


@asynccontextmanager
async def open_downloads(options: QueueOptions) -> AsyncIterator[Downloads]:
    """On a client, and so on connections, of their own: no renewal of a lease waits behind a large object."""
    async with s3_client(options) as client:
        yield Downloads(client, options.request_timeout)
