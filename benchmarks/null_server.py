"""An S3 server that does nothing but keep the promises: in memory, one process, as fast as Python can be.

For benchmarks, so that the client is what is measured. Conditional PUTs are real (``If-None-Match: *``, ``If-Match``),
listings are in order; there are no signatures, no buckets to create, and nothing is kept. Optional: a latency for every
answer, and S3's limits (3,500 writes and 5,500 reads a second, then 503 SlowDown). ``GET /-/counts`` tells and resets
the number of requests by verb. ``PUT /-/fill/BUCKET`` makes many objects at once: the first line of the body is what
each holds, the others are their keys.

Run as ``python -m benchmarks.null_server PORT [latency seconds] [limited]``; bound to loopback.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from importlib.util import find_spec
from typing import cast
from urllib.parse import parse_qsl, quote, unquote
from urllib.request import urlopen
from xml.sax.saxutils import unescape

from tests.servers._process import HOST, S3Server

__all__ = ["null_server"]

_BUCKETS = b"<ListAllMyBucketsResult><Buckets><Bucket><Name>bucket</Name></Bucket></Buckets></ListAllMyBucketsResult>"
_WRITES, _READS = 3500, 5500
_REASONS = {200: b"OK", 204: b"No Content", 304: b"Not Modified", 404: b"Not Found", 412: b"Precondition Failed",
            501: b"Not Implemented", 503: b"Slow Down"}  # fmt: skip


class Bucket:
    """All objects of all buckets, by ``/bucket/key``."""

    def __init__(self, *, limited: bool, clock: Callable[[], float] = time.time) -> None:
        #: Bytes, ETag, and when it changed.
        self.objects: dict[str, tuple[bytes, str, int]] = {}
        self.keys: list[str] = []
        self.counts: Counter[str] = Counter()
        self._limited = limited
        self._clock = clock
        self._second = -1
        self._done = {"reads": 0, "writes": 0}

    def admits(self, method: str) -> bool:
        """Whether S3 would take one more request of this kind in this second."""
        if not self._limited:
            return True
        second = int(self._clock())
        if second != self._second:
            self._second, self._done = second, {"reads": 0, "writes": 0}
        kind = "writes" if method in ("PUT", "POST", "DELETE") else "reads"
        self._done[kind] += 1
        return self._done[kind] <= (_WRITES if kind == "writes" else _READS)

    def put(self, key: str, data: bytes, headers: dict[bytes, bytes]) -> tuple[int, str]:
        """Status and ETag."""
        old = self.objects.get(key)
        if headers.get(b"if-none-match") == b"*" and old is not None:
            return 412, ""
        match = headers.get(b"if-match")
        if match is not None and old is None:
            return 404, ""
        if match is not None and old is not None and match.strip(b'"').decode() != old[1]:
            return 412, ""
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if old is None:
            insort(self.keys, key)
        self.objects[key] = (data, etag, int(time.time()))
        return 200, etag

    def fill(self, bucket: str, body: bytes) -> None:
        """Make an object of each line but the first, holding that."""
        data, *keys = body.split(b"\n")
        etag, now = hashlib.md5(data, usedforsecurity=False).hexdigest(), int(time.time())
        self.objects.update((f"/{bucket}/{key.decode()}", (data, etag, now)) for key in keys)
        self.keys = sorted(self.objects)

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def page(self, root: str, query: dict[str, str]) -> bytes:
        """A page of ListObjectsV2."""
        prefix, limit = root + query.get("prefix", ""), int(query.get("max-keys", "1000"))
        after = query.get("continuation-token") or query.get("start-after")
        first = bisect_left(self.keys, prefix)
        if after is not None:
            first = max(first, bisect_right(self.keys, root + after))
        found = self.keys[first : first + limit + 1]
        found = found[: bisect_left(found, True, key=lambda key: not key.startswith(prefix))]
        shown, more = found[:limit], len(found) > limit
        token = f"<NextContinuationToken>{quote(shown[-1][len(root) :])}</NextContinuationToken>" if more else ""
        items = "".join(self._item(key, root) for key in shown)
        return (
            "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        ).encode()

    def _item(self, key: str, root: str) -> str:
        data, etag, modified = self.objects[key]
        date = datetime.fromtimestamp(modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return (
            f"<Contents><Key>{quote(key[len(root) :])}</Key><LastModified>{date}</LastModified>"
            f"<ETag>&quot;{etag}&quot;</ETag><Size>{len(data)}</Size></Contents>"
        )


class Connection(asyncio.Protocol):
    """One client's connection: requests one after the other, also if several arrive at once."""

    def __init__(self, bucket: Bucket, latency: float) -> None:
        self._bucket = bucket
        self._latency = latency
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._expected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end]).split(b"\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head[1:])}
            size = int(headers.get(b"content-length", b"0"))
            if len(self._data) < end + 4 + size:
                if headers.get(b"expect") and not self._expected:
                    self._expected = True
                    self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._data[end + 4 : end + 4 + size])
            del self._data[: end + 4 + size]
            self._expected = False
            method, target, _ = head[0].decode().split(" ")
            answer = self._answer(method, target, headers, body)
            if self._latency:
                asyncio.get_running_loop().call_later(self._latency, self._send, answer)
            else:
                self._send(answer)

    def _send(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)

    def _answer(self, method: str, target: str, headers: dict[bytes, bytes], body: bytes) -> bytes:
        path, _, asked = target.partition("?")
        key = unquote(path)
        if key == "/-/counts":
            counts, self._bucket.counts = self._bucket.counts, Counter()
            return _reply(200, json.dumps(counts).encode())
        if key.startswith("/-/fill/"):
            self._bucket.fill(key.removeprefix("/-/fill/"), body)
            return _reply(200)
        query = dict(parse_qsl(asked, keep_blank_values=True))
        verb = "LIST" if "list-type" in query else "DELETE MANY" if "delete" in query else method
        self._bucket.counts[verb] += 1
        if headers.get(b"x-amz-content-sha256", b"").startswith(b"STREAMING"):
            return _error(501, "NotImplemented")
        if not self._bucket.admits(method):
            return _error(503, "SlowDown")
        return self._act(verb, key, query, headers, body)

    def _act(self, verb: str, key: str, query: dict[str, str], headers: dict[bytes, bytes], body: bytes) -> bytes:
        bucket = self._bucket
        match verb:
            case "GET" if key == "/":
                return _reply(200, _BUCKETS)
            case "PUT" if key.count("/") > 1:
                status, etag = bucket.put(key, body, headers)
                return _reply(200, b"", f'ETag: "{etag}"\r\n') if status == 200 else _error(status, "Precondition")
            case "GET" | "HEAD":
                return _object(bucket, verb, key)
            case "DELETE":
                bucket.delete(key)
                return _reply(204)
            case "LIST":
                return _reply(200, bucket.page("/" + key.strip("/").split("/")[0] + "/", query))
            case "DELETE MANY":
                root = "/" + key.strip("/").split("/")[0] + "/"
                text = body.decode()
                escaped = [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]
                for name in escaped:
                    bucket.delete(root + unescape(name))
                told = () if "<Quiet>true</Quiet>" in text else escaped
                deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in told)
                return _reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        return _reply(200)


def _object(bucket: Bucket, verb: str, key: str) -> bytes:
    found = bucket.objects.get(key)
    if found is None:
        return _reply(404) if verb == "HEAD" else _error(404, "NoSuchKey")
    data, etag, modified = found
    more = f'ETag: "{etag}"\r\nLast-Modified: {formatdate(modified, usegmt=True)}\r\n'
    return _reply(200, data, more, head=verb == "HEAD")


def _reply(status: int, body: bytes = b"", more: str = "", *, head: bool = False) -> bytes:
    length = "" if status in (204, 304) else f"Content-Length: {len(body)}\r\n"
    top = f"HTTP/1.1 {status} {_REASONS[status].decode()}\r\nDate: {formatdate(usegmt=True)}\r\n{more}{length}\r\n"
    return top.encode() + (b"" if head else body)


def _error(status: int, code: str) -> bytes:
    return _reply(status, f"<Error><Code>{code}</Code><Message>null server</Message></Error>".encode())


async def serve(port: int, latency: float, *, limited: bool) -> None:
    """Serve until killed."""
    bucket = Bucket(limited=limited)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(bucket, latency), HOST, port)
    async with server:
        await server.serve_forever()


@contextmanager
def null_server(*, latency: float = 0.0, limited: bool = False) -> Iterator[S3Server]:
    """A server in a process of its own."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "benchmarks.null_server",
        str(port),
        str(latency),
        *(["limited"] if limited else []),
    ]
    process = subprocess.Popen(command)
    try:
        for _ in range(200):
            try:
                urlopen(f"http://{HOST}:{port}/-/counts", timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        yield S3Server("null", f"http://{HOST}:{port}", "key", "secret", "bucket")
    finally:
        process.terminate()
        process.wait()


def counts(server: S3Server) -> dict[str, int]:
    """Requests by verb since this was asked last."""
    with urlopen(f"{server.endpoint}/-/counts", timeout=5) as answer:
        found: dict[str, int] = json.load(answer)
    return found


def main() -> None:
    """Run the server."""
    port, latency = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    if find_spec("uvloop") is not None:
        import uvloop

        uvloop.install()
    asyncio.run(serve(port, latency, limited="limited" in sys.argv))


if __name__ == "__main__":
    main()
