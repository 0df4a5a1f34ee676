"""One bucket by the lean request path: the same requests as `SdkBucket`, at a fifth of its CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from s3queue._errors import StoreError, Unanswered
from s3queue._tasks import compute
from s3queue.stores._port import Body, Deleted, Head, Listed, Page, Written
from s3queue.stores._s3_errors import answer_date, from_refusal, version_of
from s3queue.stores._s3_sign import md5
from s3queue.stores._s3_wire import Answer, BrokenOff, Wire, put_headers
from s3queue.stores._s3_xml import Listing, delete_body, read_errors, read_listing

__all__ = ["LeanBucket", "Puzzled"]


class Puzzled(Exception):
    """The store refused the request, for a reason that the SDK may know a remedy for, or more of."""


class LeanBucket:
    """Requests to one bucket, below one root. Raises our errors, and `Puzzled`."""

    def __init__(self, wire: Wire, root: str, name: str, put_headers: Mapping[str, str]) -> None:
        self._wire = wire
        self._root = root
        self._name = name
        self._put_headers = put_headers
        #: The last date that was read, as it was written and in seconds: most answers of one second share it.
        self._date: tuple[str | None, float] = (None, 0.0)

    @classmethod
    async def open(
        cls, client: Any, bucket: str, root: str, name: str, put_args: Mapping[str, Any]
    ) -> LeanBucket | None:
        """None if this client, or one of these arguments, is better left to the SDK."""
        headers = put_headers(put_args)
        wire = await Wire.open(client, bucket) if headers is not None else None
        return None if wire is None or headers is None else cls(wire, root, name, headers)

    async def get(self, key: str) -> Body:
        answer = await self._send("GET", key)
        head = self._head(answer, f"GET {key!r}")
        return Body(
            version=head.version, size=len(answer.body), modified=head.modified, date=head.date, data=answer.body
        )

    async def head(self, key: str) -> Head:
        return self._head(await self._send("HEAD", key), f"HEAD {key!r}")

    async def put(self, key: str, data: bytes, condition: Mapping[str, str], digest: str) -> Written:
        answer = await self._send(
            "PUT", key, headers={**self._put_headers, **condition, "content-md5": digest}, body=data
        )
        return Written(version=version_of(self._header(answer, "etag", f"PUT {key!r}")), date=self._date_of(answer))

    async def delete(self, key: str) -> Deleted:
        return Deleted(date=self._date_of(await self._send("DELETE", key)))

    async def delete_batch(self, keys: Sequence[str]) -> tuple[float, list[dict[str, str]]]:
        body = delete_body([self._root + key for key in keys])
        headers = {"content-md5": md5(body), "content-type": "application/xml"}
        answer = await self._send("POST", None, query=[("delete", "")], headers=headers, body=body)
        return self._date_of(answer), read_errors(answer.body, "DeleteResult")

    async def list(self, prefix: str, *, start_after: str | None, resume: str | None, limit: int) -> Page:
        query = [
            ("list-type", "2"),
            ("encoding-type", "url"),
            ("prefix", self._root + prefix),
            ("max-keys", str(limit)),
        ]
        if resume is not None:
            query.append(("continuation-token", resume))
        if start_after is not None:
            query.append(("start-after", self._root + start_after))
        answer = await self._send("GET", None, query=query)
        page: Listing = await compute(len(answer.body), read_listing, answer.body)
        if page.truncated and not page.next:
            raise StoreError(f"{self._name}: a listing of {prefix!r} is cut off and the store says not where to go on")
        cut = len(self._root)
        objects = [
            Listed(key=key[cut:], version=version_of(etag), size=size, modified=modified)
            for key, etag, size, modified in page.rows
        ]
        return Page(objects=objects, next=page.next if page.truncated else None, date=self._date_of(answer))

    async def _send(self, method: str, key: str | None, **what: Any) -> Answer:
        try:
            answer = await self._wire.send(method, "" if key is None else self._root + key, **what)
        except BrokenOff as error:
            raise Unanswered(f"{self._name}: no answer to {method} {key or ''!r} ({error})") from error
        if answer.status in (200, 204):
            return answer
        if answer.is_puzzling:
            raise Puzzled
        raise self._refusal(answer, f"{method} {key or ''!r}")

    def _refusal(self, answer: Answer, what: str) -> Exception:
        details: dict[str, str] = {}
        if answer.body:
            try:
                details = read_errors(answer.body, "Error")[0]
            except Unanswered:
                details = {}  # a proxy's page: the status has to do
        return from_refusal(
            answer.status, details.get("Code", ""), details.get("Message", ""), answer.headers, what, self._name
        )

    def _head(self, answer: Answer, what: str) -> Head:
        return Head(
            version=version_of(self._header(answer, "etag", what)),
            size=int(answer.headers.get("content-length", 0)),
            modified=self._seconds(self._header(answer, "last-modified", what)),
            date=self._date_of(answer),
        )

    def _header(self, answer: Answer, name: str, what: str) -> str:
        try:
            return answer.headers[name]
        except KeyError:
            # Every S3 tells it: this answer is somebody else's, a proxy's or a portal's.
            raise Unanswered(
                f"{self._name}: the answer to {what} has no {name!r}: is something before the store?"
            ) from None

    def _date_of(self, answer: Answer) -> float:
        text = answer.headers.get("date", "")
        if text != self._date[0]:
            self._date = (text, self._seconds(text))
        return self._date[1]

    def _seconds(self, text: str) -> float:
        return answer_date({"date": text})
