"""The lean request path: its signatures are botocore's, it reads XML with distrust, and it knows when to step back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import AccessDenied, NotFound, Unanswered
from s3queue.stores import CREATE, OVERWRITE
from s3queue.stores._s3 import S3Store
from s3queue.stores._s3_exchange import Portions
from s3queue.stores._s3_sign import Credentials, Signer, quoted_path, quoted_query
from s3queue.stores._s3_xml import delete_body, read_errors, read_listing
from tests.servers.fault import FaultServer, Reply, error

HOST = "bucket.s3.eu-central-1.amazonaws.com"
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
names = st.text("abcdefghijklmnop-", min_size=1, max_size=10).map(lambda name: f"x-amz-meta-{name}")


def botocores(
    method: str, url: str, headers: Mapping[str, str], body: bytes, now: float, credentials: Credentials
) -> dict[str, str]:
    """What botocore's signer adds."""
    request = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
    request.context["payload_signing_enabled"] = True
    request.context["signing"] = {"disableDoubleEncoding": True}
    moment = datetime.fromtimestamp(now, UTC)
    signer = S3SigV4Auth(
        BotocoreCredentials(credentials.access_key, credentials.secret_key, credentials.token), "s3", "eu-central-1"
    )
    with mock.patch("botocore.auth.get_current_datetime", return_value=moment):
        signer.add_auth(request)
    return {name.lower(): str(value) for name, value in request.headers.items()}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["GET", "PUT", "HEAD", "DELETE", "POST"]),
    text,
    st.lists(st.tuples(text, st.one_of(st.just(""), text)), max_size=4, unique_by=lambda pair: pair[0]),
    st.dictionaries(names, printable, max_size=4),
    st.binary(max_size=100),
    st.integers(1_600_000_000, 4_000_000_000),
    st.builds(Credentials, printable, printable, st.one_of(st.none(), printable)),
)
def test_signatures_are_botocores(
    method: str,
    key: str,
    query: Sequence[tuple[str, str]],
    headers: dict[str, str],
    body: bytes,
    now: int,
    credentials: Credentials,
) -> None:
    """For any key, query, headers, body, date and session token."""
    path, asked = f"/{quoted_path(key)}", quoted_query(query)
    url = f"https://{HOST}{path}" + (f"?{asked}" if asked else "")

    ours = Signer(HOST, "eu-central-1").sign(method, path, asked, headers, body, now=now, credentials=credentials)

    theirs = botocores(method, url, headers, body, now, credentials)
    assert {name: ours[name] for name in theirs} == theirs
    assert ours.keys() - theirs.keys() == {"host"}


def test_a_signing_key_is_kept_for_a_day() -> None:
    """And no longer than its secret is."""
    signer, midnight = Signer(HOST, "eu-central-1"), datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    signed = [
        signer.sign("GET", "/", "", {}, b"", now=midnight + offset, credentials=Credentials("k", secret))[
            "authorization"
        ]
        for secret, offset in [("s", 0.0), ("s", 0.5), ("other", 0.0), ("s", -1.0), ("s", 0.0)]
    ]
    assert signed[0] == signed[1] == signed[4]
    assert len(set(signed)) == 3


def test_secrets_are_not_shown() -> None:
    """Not even where somebody prints what a request is signed with."""
    assert repr(Credentials("key", "secret", "token")) == "Credentials(access_key='key')"


PAGE = b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><EncodingType>url</EncodingType>
<IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;k</NextContinuationToken>
<Contents><Key>a%20b%2Bc+d%0A</Key><LastModified>2026-12-01T10:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>
<Size>3</Size><Owner><ID>x</ID></Owner><StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>"""


def test_a_page_is_read() -> None:
    """With its escapes: of XML, and of the URL encoding that was asked for."""
    page = read_listing(PAGE)
    assert page.rows == [("a b+c d\n", '"e"', 3, 1_796_119_200.0)]
    assert (page.truncated, page.next) == (True, "t&k")
    plain = read_listing(PAGE.replace(b"<EncodingType>url</EncodingType>", b""))
    assert plain.rows[0][0] == "a%20b%2Bc+d%0A"


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        (b"<Contents>", b"<Contents><!-- <Key>no</Key> -->"), (b"<Key>", b"<Key><![CDATA[]]>"), (b"&quot;", b"&#34;"),
        (b"&quot;", b"&#x22;"), (b"<Size>", b"<Size >"), (b"</ListBucketResult>", b"</ListBucketResult>\n"),
        (b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>", b""), (b"ListBucketResult", b"s3:ListBucketResult"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_page_in_another_shape(usual: bytes, other: bytes) -> None:
    """The same page, however a store spells its XML."""
    spelled = PAGE.replace(usual, other).replace(b"xmlns=", b"xmlns:s3=" if b"s3:" in other else b"xmlns=")
    page, expected = read_listing(spelled), read_listing(PAGE)
    assert (page.rows, page.truncated, page.next) == (expected.rows, expected.truncated, expected.next)


BOMB = b"""<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>
<ListBucketResult><IsTruncated>&b;</IsTruncated></ListBucketResult>"""


@pytest.mark.parametrize(
    "data",
    [
        b"", b"<html>", b"<html/>", BOMB, PAGE[:-30], PAGE.replace(b"IsTruncated", b"Is"), PAGE.replace(b">3<", b">x<"),
        PAGE.replace(b"2026-12-01", b"yesterday"), PAGE.replace(b"ETag", b"Tag"), b"\xff\xfe", b"<ListBucketResult/>",
    ],
    ids=range(11),
)  # fmt: skip
def test_a_page_that_is_none(data: bytes) -> None:
    """Cut off, of a proxy, or hostile: no answer, and never a listing of nothing."""
    with pytest.raises(Unanswered):
        read_listing(data)


@given(st.lists(st.text(st.characters(min_codepoint=32, codec="utf-8", exclude_characters="\ufffe\uffff")), max_size=5))
def test_a_request_to_delete_is_xml(keys: list[str]) -> None:
    """Whatever the keys hold."""
    from xml.etree import ElementTree

    parsed = ElementTree.fromstring(delete_body(keys))
    found = [(element.text or "") for element in parsed.iter() if element.tag.endswith("Key")]
    assert found == keys


def test_errors_are_read() -> None:
    """Of single keys, and of whole requests."""
    answer = (
        b"<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code></Error><Error><Key>b</Key></Error></DeleteResult>"
    )
    assert read_errors(answer, "DeleteResult") == [{"Key": "a", "Code": "AccessDenied"}, {"Key": "b"}]
    assert read_errors(b"<Error><Code>SlowDown</Code></Error>", "Error") == [{"Code": "SlowDown"}]


@asynccontextmanager
async def client_on(server: FaultServer, **settings: Any) -> AsyncIterator[Any]:
    config = {"retries": {"total_max_attempts": 1}, **settings.pop("config", {})}
    arguments = {
        "endpoint_url": server.target.endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        **settings,
    }
    async with get_session().create_client("s3", config=AioConfig(**config), **arguments) as client:
        yield client


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("bucket", "put_args", "settings"),
    [
        ("bucket--usw2-az1--x-s3", {}, {}),
        ("arn:aws:s3:us-west-2:123456789012:accesspoint:mine", {}, {}),
        ("bucket", {"ObjectLockMode": "GOVERNANCE"}, {}),
        ("bucket", {"Metadata": {"a": "b"}}, {}),
        ("bucket", {}, {"config": {"signature_version": UNSIGNED}}),
        ("bucket", {}, {"config": {"signature_version": "s3"}}),
    ],
    ids=["express", "arn", "unknown argument", "structured argument", "anonymous", "old signature"],
)
async def test_what_is_unusual_is_the_sdks(bucket: str, put_args: dict[str, Any], settings: dict[str, Any]) -> None:
    """The lean path is taken only where it does what the SDK would do."""
    async with FaultServer() as server, client_on(server, **settings) as client:
        store = S3Store(client, bucket, "ws", put_args=put_args)
        await store._open()
        assert not store.is_lean


@pytest.mark.asyncio
async def test_a_client_with_handlers_is_the_sdks() -> None:
    """Whoever wants to see or to change requests goes on seeing them."""
    seen: list[str] = []
    async with FaultServer() as server, client_on(server) as client:
        client.meta.events.register("before-send.s3", lambda request, **_: seen.append(request.method))
        store = S3Store(client, "bucket", "ws")
        await store.put("a", b"x", CREATE)
        assert (store.is_lean, seen) == (False, ["PUT"])


@pytest.mark.asyncio
async def test_put_arguments_are_headers() -> None:
    """Those that the lean path knows, signed; and no other header than ours."""
    arguments = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "id", "BucketKeyEnabled": True, "ACL": "private"}
    async with FaultServer() as server, client_on(server) as client:
        store = S3Store(client, "bucket", "ws", put_args=arguments)
        await store.put("a", b"x", CREATE)
        (sent,) = server.sent("PUT")
        assert store.is_lean
        assert sent.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert sent.headers["x-amz-server-side-encryption-bucket-key-enabled"] == "true"
        assert "x-amz-acl" in sent.headers["authorization"]
        assert sent.headers.keys() - {"host", "content-length", "authorization"} == {
            "x-amz-acl", "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id",
            "x-amz-server-side-encryption-bucket-key-enabled", "x-amz-date", "x-amz-content-sha256", "content-md5",
            "if-none-match",
        }  # fmt: skip


@pytest.mark.asyncio
async def test_credentials_that_change_are_followed() -> None:
    """Each request is signed with what the SDK's provider has by then."""
    async with FaultServer() as server, client_on(server) as client:
        store = S3Store(client, "bucket", "ws")
        await store.put("a", b"x", OVERWRITE)
        client._request_signer._credentials.access_key = "rotated"
        client._request_signer._credentials.token = "session"
        await store.put("a", b"x", OVERWRITE)
        first, second = server.sent("PUT")
        assert "Credential=key/" in first.headers["authorization"]
        assert "Credential=rotated/" in second.headers["authorization"]
        assert second.headers["x-amz-security-token"] == "session"


@pytest.mark.asyncio
async def test_a_puzzle_is_the_sdks() -> None:
    """A refusal that the SDK gets through is no error; three in a row, and everything goes the SDK's way."""
    async with FaultServer() as server, client_on(server) as client:
        store = S3Store(client, "bucket", "ws")
        for i in range(3):
            server.rule("PUT", f"k{i}", error(403, "SignatureDoesNotMatch"))
            await store.put(f"k{i}", b"x", CREATE)
            assert store.is_lean is (i < 2)
        await store.put("k3", b"x", CREATE)
        assert len(server.sent("PUT")) == 7
        assert "user-agent" in server.sent("PUT")[-1].headers


@pytest.mark.asyncio
async def test_a_refusal_is_told_by_the_sdk() -> None:
    """If it is refused again, that is the answer; and the lean path stays open for other keys."""
    async with FaultServer() as server, client_on(server) as client:
        store = S3Store(client, "bucket", "ws")
        server.rule("GET", "secret", error(403, "AccessDenied"), times=2)
        with pytest.raises(AccessDenied):
            await store.get("secret")
        with pytest.raises(NotFound):
            await store.get("nothing")
        assert store.is_lean


@pytest.mark.asyncio
@pytest.mark.parametrize("missing", ["ETag", "Last-Modified"])
async def test_an_answer_of_a_proxy(missing: str) -> None:
    """A success without what every S3 says is no answer."""
    headers = {"ETag": '"e"', "Last-Modified": "Tue, 01 Dec 2026 10:00:00 GMT"}
    del headers[missing]
    async with FaultServer() as server, client_on(server) as client:
        server.rule("GET", "a", Reply(200, b"welcome", headers))
        with pytest.raises(Unanswered, match="before the store"):
            await S3Store(client, "bucket", "ws").get("a")


@pytest.mark.asyncio
async def test_a_crowd_of_answers_is_passed_on_by_portions() -> None:
    """Others have the loop in between; who gives up meanwhile takes nobody's place."""
    portions, passed = Portions(4), []

    async def pass_on(number: int) -> None:
        await portions.turn()
        passed.append(number)

    tasks = [asyncio.create_task(pass_on(number)) for number in range(12)]
    await asyncio.sleep(0)
    seen = [len(passed)]
    tasks[5].cancel()
    while len(passed) < 11:
        await asyncio.sleep(0)
        seen.append(len(passed))

    assert passed == [number for number in range(12) if number != 5]
    assert max(after - before for before, after in pairwise(seen)) <= 4
    assert seen[0] == 4
    await pass_on(12)
    assert passed[-1] == 12
