"""One bucket through aiobotocore's client API: for every store and every configuration, at 2 ms of CPU a request."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from s3queue._errors import NotFound, StoreError, Throttled, Unanswered
from s3queue.stores._port import Body, Deleted, Head, Listed, Page, Written
from s3queue.stores._s3_errors import answer_date, mapped, version_of

__all__ = ["SdkBucket"]

_CONDITIONS = {"if-none-match": "IfNoneMatch", "if-match": "IfMatch"}


class SdkBucket:
    """Requests to one bucket, below one root. Raises our errors."""

    def __init__(self, client: Any, bucket: str, root: str, name: str, put_args: Mapping[str, Any]) -> None:
        self._client = client
        self._bucket = bucket
        self._root = root
        self._name = name
        self._put_args = put_args
        self._express = bucket.endswith("--x-s3")

    async def get(self, key: str) -> Body:
        with mapped(f"GET {key!r}", self._name):
            answer = await self._client.get_object(Bucket=self._bucket, Key=self._root + key)
            async with answer["Body"] as stream:
                data = await self._read(stream, key)
            head = _head(answer)
        return Body(version=head.version, size=len(data), modified=head.modified, date=head.date, data=data)

    async def _read(self, stream: Any, key: str) -> bytes:
        try:
            data: bytes = await stream.read()
        except Exception as error:
            # A connection that breaks inside a body: the HTTP library's own errors come through as they are.
            what = f"{type(error).__name__}: {error}"
            raise Unanswered(f"{self._name}: the answer to GET {key!r} broke off ({what})") from error
        return data

    async def head(self, key: str) -> Head:
        try:
            with mapped(f"HEAD {key!r}", self._name):
                return _head(await self._client.head_object(Bucket=self._bucket, Key=self._root + key))
        except (NotFound, Throttled, Unanswered):
            raise
        except StoreError:
            # A refused HEAD has no body that says why (old credentials, a wrong clock, …): the same GET does.
            return await self.get(key)

    async def put(self, key: str, data: bytes, condition: Mapping[str, str], digest: str) -> Written:
        with mapped(f"PUT {key!r}", self._name):
            answer = await self._client.put_object(
                Bucket=self._bucket,
                Key=self._root + key,
                Body=data,
                **self._checksum(data, digest),
                **self._put_args,
                **{_CONDITIONS[name]: value for name, value in condition.items()},
            )
            return Written(version=version_of(answer["ETag"]), date=_date(answer))

    def _checksum(self, data: bytes, digest: str) -> Mapping[str, str]:
        if self._express:  # which takes no Content-MD5
            return {"ChecksumCRC32": base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode("ascii")}
        return {"ContentMD5": digest}

    async def delete(self, key: str) -> Deleted:
        with mapped(f"DELETE {key!r}", self._name):
            return Deleted(date=_date(await self._client.delete_object(Bucket=self._bucket, Key=self._root + key)))

    async def delete_batch(self, keys: Sequence[str]) -> tuple[float, list[Mapping[str, str]]]:
        with mapped(f"DELETE of {len(keys)} objects", self._name):
            answer = await self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": self._root + key} for key in keys], "Quiet": True}
            )
            return _date(answer), answer.get("Errors", [])

    async def list(self, prefix: str, *, start_after: str | None, resume: str | None, limit: int) -> Page:
        where = {"ContinuationToken": resume} if resume is not None else {}
        if start_after is not None:
            where["StartAfter"] = self._root + start_after
        with mapped(f"LIST {prefix!r}", self._name):
            answer = await self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._root + prefix, MaxKeys=limit, **where
            )
            objects = [
                Listed(
                    key=item["Key"][len(self._root) :],
                    version=version_of(item["ETag"]),
                    size=item["Size"],
                    modified=item["LastModified"].timestamp(),
                )
                for item in answer.get("Contents", [])
            ]
            # A proxy's page would pass for a listing of nothing, but for this.
            truncated = answer["IsTruncated"]
            date = _date(answer)
        following = answer.get("NextContinuationToken") or None
        if truncated and following is None:
            raise StoreError(f"{self._name}: a listing of {prefix!r} is cut off and the store says not where to go on")
        return Page(objects=objects, next=following if truncated else None, date=date)


def _head(answer: Mapping[str, Any]) -> Head:
    return Head(
        version=version_of(answer["ETag"]),
        size=answer["ContentLength"],
        modified=answer["LastModified"].timestamp(),
        date=_date(answer),
    )


def _date(answer: Mapping[str, Any]) -> float:
    return answer_date(answer["ResponseMetadata"]["HTTPHeaders"])
