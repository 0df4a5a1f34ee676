"""The lean request path: the hot requests to one bucket, signed by us and sent on the client's own connections.

The SDK spends some 2 ms of CPU on a request that takes a tenth of that to sign and send. So aiobotocore keeps what it
is good at (configuration, endpoints, regions, credentials, proxies, TLS), and we send PUT, GET, HEAD, DELETE,
DeleteObjects and ListObjectsV2 ourselves, over its own aiohttp session. Whatever is unusual about a client is left to
the SDK (`Wire.open` then gives None), and so is every answer that wants the SDK's wits: old credentials, a wrong
region, a wrong clock (`Answer.is_puzzling`); such a request was refused, so it may be sent again.

aiohttp may send a request twice if a connection that was kept alive turns out to be closed. The protocol expects that
of every layer: a 412 proves nothing until the object is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from s3queue._runtime import Runtime
from s3queue.stores._s3_exchange import Exchange, exchange_on
from s3queue.stores._s3_sign import Credentials, Signer, quoted_path, quoted_query

__all__ = ["Answer", "Wire"]

#: Refused, for a reason that the SDK may know a remedy for: redirects, skew, credentials, regions, features.
_PUZZLING = frozenset({301, 307, 400, 401, 403, 405, 501})
#: Events of a client on which somebody else's handler may want to change a request, or see it.
_EVENTS = ("before-parameter-build", "before-call", "request-created", "choose-signer", "before-sign", "before-send")
_OPERATIONS = ("PutObject", "GetObject", "HeadObject", "DeleteObject", "DeleteObjects", "ListObjectsV2")
_SDK = ("botocore.", "aiobotocore.")
_NETWORK = (aiohttp.ClientError, TimeoutError, OSError)
#: The SDK's names of arguments of a PUT, as headers.
_PUT_HEADERS = {
    "ACL": "x-amz-acl",
    "BucketKeyEnabled": "x-amz-server-side-encryption-bucket-key-enabled",
    "CacheControl": "cache-control",
    "ContentType": "content-type",
    "ExpectedBucketOwner": "x-amz-expected-bucket-owner",
    "RequestPayer": "x-amz-request-payer",
    "SSEKMSKeyId": "x-amz-server-side-encryption-aws-kms-key-id",
    "ServerSideEncryption": "x-amz-server-side-encryption",
    "StorageClass": "x-amz-storage-class",
    "Tagging": "x-amz-tagging",
}


class BrokenOff(Exception):
    """No answer, or half of one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whatever it says."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_puzzling(self) -> bool:
        """Whether the SDK shall do the same, since it may know better, or say better what is wrong."""
        return self.status in _PUZZLING


class Wire:
    """Sends requests to one bucket."""

    def __init__(self, base: str, signer: Signer, exchange: Exchange, proxy: Any, signing: Any) -> None:
        split = urlsplit(base)
        self._origin = URL(f"{split.scheme}://{split.netloc}", encoded=True).origin()
        self._path = split.path.rstrip("/")
        self._signer = signer
        self._exchange = exchange
        self._proxy = proxy
        self._signing = signing
        self._wall = Runtime().wall
        #: The last credentials, as the SDK gave them, and as we use them.
        self._frozen: Any = None
        self._last = Credentials("", "")

    @classmethod
    async def open(cls, client: Any, bucket: str) -> Wire | None:
        """A wire for this client's bucket; None if anything about it is unfamiliar."""
        try:
            if not _is_plain(client, bucket):
                return None
            base, region, service = await _address(client, bucket)
            http = client._endpoint.http_session  # noqa: SLF001 - it has no other face, see _is_plain
            proxy = http._proxy_config.proxy_url_for(base)  # noqa: SLF001
            session = await http._get_session(proxy)  # noqa: SLF001
            signing = client._request_signer  # noqa: SLF001
        except (AttributeError, TypeError, KeyError, ValueError):
            return None  # an SDK that is built in another way
        if not isinstance(session, aiohttp.ClientSession) or session.connector is None:
            return None
        return cls(base, Signer(urlsplit(base).netloc, region, service), exchange_on(session), proxy, signing)

    async def send(
        self,
        method: str,
        path: str = "",
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Send one request and read its answer. `path` is a key. Raises `BrokenOff`."""
        path = f"{self._path}/{quoted_path(path)}"
        text = quoted_query(query) if query else ""
        signed = self._signer.sign(
            method,
            path,
            text,
            headers or {},
            body,
            now=self._wall(),
            credentials=await self._credentials(),
        )
        target = f"{path}?{text}" if text else path
        try:
            return Answer(*await self._exchange.send(method, self._origin, target, signed, body, proxy=self._proxy))
        except _NETWORK as error:
            raise BrokenOff(f"{type(error).__name__}: {error}") from error

    async def _credentials(self) -> Credentials:
        """Those of the SDK's provider, which refreshes them when they are due."""
        now = await self._signing._credentials.get_frozen_credentials()  # noqa: SLF001
        if now != self._frozen:
            self._frozen = now
            self._last = Credentials(now.access_key, now.secret_key, now.token)
        return self._last


def put_headers(arguments: Mapping[str, Any]) -> dict[str, str] | None:
    """The SDK's arguments of a PUT as headers; None if one of them is unknown here."""
    if not arguments.keys() <= _PUT_HEADERS.keys():
        return None
    if not all(isinstance(value, (str, bool)) for value in arguments.values()):
        return None
    text = {name: str(value).lower() if isinstance(value, bool) else value for name, value in arguments.items()}
    return {_PUT_HEADERS[name]: value for name, value in text.items()}


def _is_plain(client: Any, bucket: str) -> bool:
    """Whether the SDK would do nothing to this client's requests that we do not.

    Not plain: S3 Express, access points, other signatures than SigV4, no credentials, other HTTP libraries than
    aiohttp, and handlers of somebody else's on the client's events.
    """
    if ":" in bucket or bucket.endswith("--x-s3"):
        return False
    if client.meta.config.signature_version not in (None, "s3v4") or client._request_signer._credentials is None:  # noqa: SLF001
        return False
    if not hasattr(client._endpoint.http_session, "_get_session"):  # noqa: SLF001
        return False
    return all(
        _module(handler).startswith(_SDK)
        for event in _EVENTS
        for operation in _OPERATIONS
        for handler in client.meta.events._emitter._handlers.prefix_search(f"{event}.s3.{operation}")  # noqa: SLF001
    )


async def _address(client: Any, bucket: str) -> tuple[str, str, str]:
    """The bucket's URL, and the region and the service to sign for: the SDK resolves style, region and endpoint.

    Raises `ValueError` for what is not signed by SigV4."""
    operation = client.meta.service_model.operation_model("ListObjectsV2")
    url, headers, properties = await client._resolve_endpoint_ruleset(operation, {"Bucket": bucket}, {})  # noqa: SLF001
    scheme = (properties.get("authSchemes") or [{"name": "sigv4"}])[0]
    if headers or scheme["name"] != "sigv4":
        raise ValueError(scheme["name"])
    region = scheme.get("signingRegion") or client.meta.region_name
    if not url or not region:
        raise ValueError(url)
    return url, region, scheme.get("signingName") or "s3"


def _module(handler: Any) -> str:
    return getattr(handler, "__module__", None) or type(handler).__module__ or ""
