"""From an address to a store: what is S3, what is a folder, and what is a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3queue import ConfigurationError, QueueOptions
from s3queue._runtime import Runtime
from s3queue.stores import LocalStore, Store
from s3queue.stores._open import S3Address, is_s3, open_store, parse_s3
from tests.virtual import virtual


@pytest.mark.parametrize(
    ("address", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket//", "bucket", ""),
        ("s3://bucket/prefix", "bucket", "prefix"),
        ("s3://bucket/a/b/c/", "bucket", "a/b/c"),
        ("s3://bucket//a//", "bucket", "a"),
        ("S3://bucket/A", "bucket", "A"),
        ("s3://my.bucket-1/é x/?#%20&+", "my.bucket-1", "é x/?#%20&+"),
        ("s3://bucket/a..b/...", "bucket", "a..b/..."),
    ],
)
def test_an_s3_address_is_taken_apart(address: str, bucket: str, prefix: str) -> None:
    """The bucket, and a prefix without slashes at its ends; nothing in it is decoded."""
    assert is_s3(address)
    assert parse_s3(address) == S3Address(bucket, prefix)


@pytest.mark.parametrize(
    "address",
    ["s3://", "s3:///", "s3:///prefix", "s3://b/a//c", "s3://b/..", "s3://b/a/../c", "s3://b/./c", "s3://b/."],
)
def test_a_bad_s3_address_is_refused(address: str) -> None:
    """No bucket, or a prefix that tools would read in different ways: the address is in the message."""
    assert is_s3(address)
    with pytest.raises(ConfigurationError, match="s3://"):
        parse_s3(address)


@pytest.mark.parametrize(
    "address", ["gs://bucket/x", "http://host/bucket", "https://b.s3.amazonaws.com/x", "file:///tmp/x", "s3a://b/x"]
)
def test_another_scheme_is_refused(address: str) -> None:
    """It is never taken for a folder of that name."""
    with pytest.raises(ConfigurationError, match=r"s3://bucket/prefix or a folder"):
        is_s3(address)


@pytest.mark.parametrize("address", [str(Path("s3://bucket/x")), "s3:bucket/x", "S3:/bucket"])
def test_an_s3_address_that_lost_a_slash_is_refused(address: str) -> None:
    """As `pathlib.Path` does to it: a fleet must not fall apart into folders of that name."""
    with pytest.raises(ConfigurationError, match="starts with s3://"):
        is_s3(address)


@pytest.mark.parametrize("address", ["folder", "/abs/folder", "./s3:x", "a b", "s3", "bucket/prefix", "C:/x", "~/x"])
def test_anything_else_is_a_folder(address: str) -> None:
    """And no S3 address."""
    assert not is_s3(address)
    with pytest.raises(ConfigurationError, match="is not an S3 address"):
        parse_s3(address)


async def opened(workspace: str | Path, **put_args: str) -> Store:
    async with open_store(workspace, options=QueueOptions(), runtime=Runtime(), put_args=put_args or None) as store:
        return store


@virtual
async def test_a_folder_opens_as_one(tmp_path: Path) -> None:
    """By its path as a string or as a `Path`; nothing is made before something is written."""
    for workspace in (tmp_path / "new" / "ws", str(tmp_path / "new" / "ws")):
        assert isinstance(await opened(workspace), LocalStore)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workspace", ["", "s3://", "s3://b/..", "gs://b/x", Path("s3://b/x")])
@virtual
async def test_no_store_without_a_proper_address(workspace: str | Path) -> None:
    """A mistake is told before any client is made."""
    with pytest.raises(ConfigurationError):
        await opened(workspace)


@virtual
async def test_arguments_of_s3_puts_are_not_for_folders(tmp_path: Path) -> None:
    """Rather than to be ignored, they are refused."""
    with pytest.raises(ConfigurationError, match="put_args"):
        await opened(tmp_path, ServerSideEncryption="AES256")
