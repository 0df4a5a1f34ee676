"""AWS Signature Version 4 for S3, with headers: what botocore's signer does, without its generality.

The rules are AWS's ("Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)"). Pure but for
a cache: keys are derived once a day, region and secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

__all__ = ["Credentials", "Signer", "md5", "quoted_path", "quoted_query"]

#: Kinds of requests are few; whoever makes up headers shall not fill the memory.
_ORDERS_MOST = 64
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request is signed with."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def quoted_path(key: str) -> str:
    """A key as it stands in a URL: S3 wants it encoded once, slashes as they are."""
    return quote(key, safe="/~")


def quoted_query(parameters: Sequence[tuple[str, str]]) -> str:
    """A query string in canonical order, so that it is signed as it is sent."""
    return "&".join(sorted(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in parameters))


def md5(body: bytes) -> str:
    """A body's digest as Content-MD5 wants it."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode("ascii")


class Signer:
    """Signs requests to one host in one region. Remembers what the last request had in common with the next one."""

    def __init__(self, host: str, region: str, service: str = "s3") -> None:
        self._host = host
        self._region = region
        self._service = service
        self._key = hmac.new(b"", digestmod="sha256")
        self._key_of: tuple[str, str] = ("", "")
        self._second = -1
        self._stamp = self._scope = ""
        #: By the headers of a request: their names in order, and as the list of signed ones.
        self._orders: dict[tuple[str, ...], tuple[list[str], str]] = {}

    def sign(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        now: float,
        credentials: Credentials,
    ) -> dict[str, str]:
        """All headers of the request: these (names in lower case), the date, the body's digest, the authorization.

        `path` and `query` are encoded already, and the query is in order; `now` is POSIX seconds.
        """
        if int(now) != self._second:
            self._tick(int(now))
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY
        every = {**headers, "host": self._host, "x-amz-content-sha256": digest, "x-amz-date": self._stamp}
        if credentials.token is not None:
            every["x-amz-security-token"] = credentials.token
        names, signed = self._order(tuple(every))
        lines = "".join([f"{name}:{_trimmed(every[name])}\n" for name in names])
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{signed}\n{digest}"
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self._stamp}\n{self._scope}\n{hashed}"
        signing = self._signing_key(credentials.secret_key).copy()
        signing.update(text.encode())
        signature = signing.hexdigest()
        who = f"{credentials.access_key}/{self._scope}"
        every["authorization"] = f"AWS4-HMAC-SHA256 Credential={who}, SignedHeaders={signed}, Signature={signature}"
        return every

    def _tick(self, second: int) -> None:
        self._second = second
        self._stamp = datetime.fromtimestamp(second, UTC).strftime("%Y%m%dT%H%M%SZ")
        self._scope = f"{self._stamp[:8]}/{self._region}/{self._service}/aws4_request"

    def _order(self, names: tuple[str, ...]) -> tuple[list[str], str]:
        found = self._orders.get(names)
        if found is None:
            ordered = sorted(names)
            found = ordered, ";".join(ordered)
            if len(self._orders) < _ORDERS_MOST:
                self._orders[names] = found
        return found

    def _signing_key(self, secret: str) -> hmac.HMAC:
        day = self._stamp[:8]
        if self._key_of != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._key_of = hmac.new(key, digestmod="sha256"), (secret, day)
        return self._key


def _trimmed(value: str) -> str:
    """A header's value without outer spaces, and runs of spaces as one."""
    return " ".join(value.split()) if " " in value else value
