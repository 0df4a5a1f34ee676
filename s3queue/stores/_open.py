"""From a workspace's address to its store."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from s3queue._errors import ConfigurationError
from s3queue._options import QueueOptions
from s3queue._runtime import Runtime
from s3queue.stores._local import LocalStore
from s3queue.stores._port import Store

__all__ = ["S3Address", "is_s3", "open_client", "open_store", "parse_s3", "s3_store"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class S3Address:
    """``s3://bucket/prefix``, taken apart; the prefix has no slash at either end, and may be empty."""

    bucket: str
    prefix: str


def is_s3(address: str) -> bool:
    """Whether this is an S3 address rather than a folder. Raises `ConfigurationError` for any other scheme."""
    scheme = _SCHEME.match(address)
    if scheme is None:
        if address.lower().startswith("s3:"):  # as pathlib.Path leaves it, which drops a slash
            raise ConfigurationError(f"{address!r}: an S3 address is a string that starts with s3://")
        return False
    if scheme[1].lower() != "s3":
        raise ConfigurationError(f"{address!r}: a workspace is s3://bucket/prefix or a folder, not {scheme[1]}://")
    return True


def parse_s3(address: str) -> S3Address:
    """Raises `ConfigurationError`."""
    if not is_s3(address):
        raise ConfigurationError(f"{address!r} is not an S3 address: write s3://bucket/prefix")
    bucket, _, prefix = address[len("s3://") :].partition("/")
    if not bucket:
        raise ConfigurationError(f"{address!r} names no bucket: write s3://bucket/prefix")
    prefix = prefix.strip("/")
    if "//" in prefix or any(part in (".", "..") for part in prefix.split("/")):
        raise ConfigurationError(f"{address!r}: a prefix cannot have an empty part, '.' or '..'")
    return S3Address(bucket, prefix)


def s3_store(client: Any, workspace: str, *, put_args: Mapping[str, Any] | None = None, lean: bool = True) -> Store:
    """The store of an S3 workspace, on a client that stays the caller's. Raises `ConfigurationError`."""
    from s3queue.stores._s3 import S3Store  # the SDK takes half a second to import: only where it is used

    address = parse_s3(workspace)
    return S3Store(client, address.bucket, address.prefix, put_args=put_args, lean=lean)


@asynccontextmanager
async def open_client(*, options: QueueOptions | None = None) -> AsyncIterator[Any]:
    """An S3 client from the ordinary AWS configuration, for the queues of one process to share.

    It is an aiobotocore client with what a queue needs: no hidden retries, and `connections`, `request_timeout` and
    `retry_for` of these options. `open_queue` takes it, and so may anything else that reads or writes S3. Raises
    `ConfigurationError` for a profile or a region that does not exist.
    """
    from s3queue.stores._s3 import s3_client

    async with s3_client(options or QueueOptions()) as client:
        yield client


@asynccontextmanager
async def open_store(
    workspace: str | os.PathLike[str],
    *,
    options: QueueOptions,
    runtime: Runtime,
    put_args: Mapping[str, Any] | None = None,
    client: Any = None,
) -> AsyncIterator[Store]:
    """The store of a workspace; if it is on S3, on this client, or one of its own. Raises `ConfigurationError`."""
    address = os.fspath(workspace)
    if not address:
        raise ConfigurationError("a workspace is s3://bucket/prefix or a folder: its name is empty")
    if not is_s3(address):
        if put_args:
            raise ConfigurationError("put_args are for s3:// workspaces: a folder takes none")
        yield LocalStore(address, runtime)
        return
    parse_s3(address)
    async with nullcontext(client) if client is not None else open_client(options=options) as chosen:
        # Ours computes no checksums of the SDK's unless somebody configured them; then the SDK shall send them.
        lean = getattr(chosen.meta.config, "request_checksum_calculation", None) != "when_supported"
        yield s3_store(chosen, address, put_args=put_args, lean=lean)
