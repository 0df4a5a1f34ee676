"""The S3 adapter against a scripted server: what each answer means, and what each store's quirk leads to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from s3queue import (
    AccessDenied,
    ConfigurationError,
    CredentialsExpired,
    NotFound,
    PreconditionFailed,
    QueueOptions,
    StoreError,
    Throttled,
    Unanswered,
    Unsupported,
    WriteConflict,
)
from s3queue._events import Events
from s3queue._runtime import Runtime
from s3queue.stores import CREATE, OVERWRITE, Replace, Store
from s3queue.stores._listing import list_pages
from s3queue.stores._open import open_store
from s3queue.stores._retry import RetryingStore
from s3queue.stores._s3 import S3Store, s3_client
from tests.conftest import client_of
from tests.servers.fault import FaultServer, Reply, error, listing

pytestmark = pytest.mark.asyncio

OPTIONS = QueueOptions(request_timeout=5.0)
BUCKETS = Reply(
    200, b"<ListAllMyBucketsResult><Buckets><Bucket><Name>bucket</Name></Bucket></Buckets></ListAllMyBucketsResult>"
)


class Way:
    """Which request path the stores of this module take."""

    lean = True


@pytest.fixture(autouse=True, params=[True, False], ids=["lean", "sdk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs on both."""
    monkeypatch.setattr(Way, "lean", request.param)


@asynccontextmanager
async def store_on(server: FaultServer, put_args: dict[str, Any] | None = None) -> AsyncIterator[S3Store]:
    server.rule("GET", "^$", BUCKETS)
    async with client_of(server.target) as client:
        server.requests.clear()
        yield S3Store(client, "bucket", "ws", put_args=put_args, lean=Way.lean)


@pytest.mark.parametrize(
    ("reply", "raised"),
    [
        (error(304, ""), PreconditionFailed),
        (Reply(304), PreconditionFailed),
        (Reply(412), PreconditionFailed),
        (Reply(412, b"<html>not S3"), PreconditionFailed),
        (error(412, "PreconditionFailed"), PreconditionFailed),
        (error(409, "ConditionalRequestConflict"), WriteConflict),
        (error(404, "NoSuchKey"), NotFound),
        (error(404, "NoSuchBucket"), ConfigurationError),
        (error(501, "NotImplemented"), Unsupported),
        (error(405, "MethodNotAllowed"), Unsupported),
        (error(429, "TooManyRequests"), Throttled),
        (error(503, "SlowDown"), Throttled),
        (Reply(503), Throttled),
        (error(500, "InternalError"), Unanswered),
        (Reply(502, b"<html>gateway"), Unanswered),
        (error(403, "AccessDenied"), AccessDenied),
        (error(403, "RequestTimeTooSkewed"), ConfigurationError),
        (error(400, "ExpiredToken"), CredentialsExpired),
        (error(403, "ExpiredToken"), CredentialsExpired),
        (error(400, "AuthorizationHeaderMalformed"), ConfigurationError),
        (error(400, "InvalidRequest", "x-amz-checksum-crc32 is not known"), Unsupported),
        (error(400, "InvalidArgument"), StoreError),
    ],
)
async def test_an_answer_is_read_by_its_status(reply: Reply, raised: type[Exception]) -> None:
    """Each status has one meaning, whatever the body says (B02, B03, B08, B13, B17, B31); and is one request (B01).

    The lean path asks the SDK about refusals that it may know a remedy for: nothing was applied."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("PUT", "lock", reply, times=2)

        with pytest.raises(raised) as caught:
            await store.put("lock", b"x", CREATE)

        assert type(caught.value) is raised
        asked_twice = Way.lean and reply.status in (400, 401, 403, 405, 501)
        assert len(server.sent("PUT")) == 1 + asked_twice


async def test_a_dropped_connection_is_no_answer() -> None:
    """Nothing is known then; below us the request may even have been sent twice, so only reading settles it."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("PUT", "lock", Reply(drop=True), times=5)

        with pytest.raises(Unanswered):
            await store.put("lock", b"x", CREATE)


async def test_no_secret_in_an_error() -> None:
    """An error names the store and the key, and neither the credentials nor a signature."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("PUT", "lock", error(403, "AccessDenied"), times=2)

        with pytest.raises(AccessDenied, match=r"s3://bucket/ws at http://127\.0\.0\.1:\d+: PUT 'lock': 403") as caught:
            await store.put("lock", b"x", CREATE)

        assert "Signature" not in str(caught.value)


async def test_a_missing_key_with_an_empty_answer() -> None:
    """HEAD answers have no body, so a missing key is a bare 404 (B08)."""
    async with FaultServer() as server, store_on(server) as store:
        with pytest.raises(NotFound):
            await store.head("nothing")
        with pytest.raises(NotFound):
            await store.get("nothing")


@pytest.mark.parametrize("bare", [True, False])
async def test_the_spelling_of_an_etag_is_learned(bare: bool) -> None:
    """If-Match works whether the store wants the ETag quoted or bare, and only the first update looks (B05)."""
    async with FaultServer(bare_etags=bare) as server, store_on(server) as store:
        version = (await store.put("lock", b"0", CREATE)).version
        for i in range(1, 4):
            version = (await store.put("lock", b"%d" % i, Replace(version))).version

        assert server.objects["ws/lock"][0] == b"3"
        assert len(server.sent("HEAD")) == (1 if bare else 0)


async def test_a_lost_update_is_not_taken_for_a_spelling() -> None:
    """A stale version is refused, in either spelling, and the object stays."""
    async with FaultServer() as server, store_on(server) as store:
        stale = (await store.put("lock", b"mine", CREATE)).version
        await store.put("lock", b"theirs", OVERWRITE)

        with pytest.raises(PreconditionFailed):
            await store.put("lock", b"mine again", Replace(stale))

        assert server.objects["ws/lock"][0] == b"theirs"


async def test_weak_etags_are_refused() -> None:
    """A weak ETag cannot be used in a condition (B05)."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("PUT", "lock", Reply(200, headers={"ETag": 'W/"abc"'}))

        with pytest.raises(Unsupported, match="weak"):
            await store.put("lock", b"x", CREATE)


async def test_an_answer_without_a_date() -> None:
    """Without the store's clock no lease can be aged, so that is said at once."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("PUT", "lock", Reply(200, headers={"ETag": '"abc"', "Date": ""}))

        with pytest.raises(Unsupported, match="Date"):
            await store.put("lock", b"x", CREATE)


async def test_a_body_that_breaks_off_is_read_again() -> None:
    """Half an object is no object: the whole read is repeated (B20)."""
    async with FaultServer() as server, store_on(server) as raw:
        store = retrying(raw)
        await raw.put("index", b"x" * 100_000, CREATE)
        server.rule("GET", "index", Reply(200, b"x" * 100_000, {"ETag": '"e"', "Last-Modified": _NOW}, cut=50_000))

        body = await store.get("index")

        assert body.data == b"x" * 100_000
        assert store.requests["get"] == 2


async def test_unread_bodies_do_not_block_the_pool() -> None:
    """Two connections serve any number of reads that break off, and then still a claim (B15)."""
    async with FaultServer() as server:
        server.rule("GET", "^$", BUCKETS)
        async with client_of(server.target, max_pool_connections=2) as client:
            store = S3Store(client, "bucket", "ws", lean=Way.lean)
            await store.put("large", b"x" * 8_000_000, CREATE)
            for _ in range(20):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.005):  # cancelled somewhere in the middle of it
                        await store.get("large")
                server.rule("GET", "broken", Reply(200, b"x" * 1000, {"ETag": '"e"', "Last-Modified": _NOW}, cut=500))
                with pytest.raises(Unanswered):
                    await store.get("broken")

            assert (await asyncio.wait_for(store.put("lock", b"x", CREATE), 10)).version


async def test_a_request_that_is_never_answered_has_a_deadline() -> None:
    """A deadline of ours ends a request that hangs, and the next one works (B19)."""
    async with FaultServer() as server, store_on(server) as raw:
        store = RetryingStore(raw, Runtime(), timeout=0.2, retry_for=0.1, events=Events())
        never = asyncio.Event()
        server.rule("HEAD", "flag", hold=never)

        with pytest.raises(Unanswered, match=r"no answer to head of 'flag' within 0\.2 s"):
            await store.head("flag")

        with pytest.raises(NotFound):
            await store.head("flag")


async def test_put_arguments_go_with_every_write() -> None:
    """Extra arguments are sent with creates, updates and overwrites alike (B11)."""
    async with FaultServer() as server, store_on(server, {"ServerSideEncryption": "AES256"}) as store:
        version = (await store.put("a", b"1", CREATE)).version
        await store.put("a", b"2", Replace(version))
        await store.put("a", b"3", OVERWRITE)

        sent = [request.headers.get("x-amz-server-side-encryption") for request in server.sent("PUT")]
        assert sent == ["AES256"] * 3


async def test_a_digest_goes_with_every_write() -> None:
    """A body that breaks off is refused by the store, instead of kept as an empty lock."""
    async with FaultServer() as server, store_on(server) as store:
        await store.put("a", b"1", CREATE)
        await store.put("a", b"", OVERWRITE)

        sent = [request.headers["content-md5"] for request in server.sent("PUT")]
        expected = [base64.b64encode(hashlib.md5(data).digest()).decode() for data in (b"1", b"")]
        assert sent == expected


async def test_the_pool_of_our_own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue's client is its own, with as many connections as the options say: handlers cannot starve it (B16)."""
    async with s3_client(QueueOptions(connections=77)) as client:
        assert client.meta.config.max_pool_connections == 77
        assert client.meta.config.retries["total_max_attempts"] == 1


async def test_put_arguments_that_the_sdk_does_not_know() -> None:
    """A misspelt argument is the user's mistake, said in one line."""
    async with FaultServer() as server, store_on(server, {"ServerSideEncription": "AES256"}) as store:
        with pytest.raises(ConfigurationError, match="ServerSideEncription"):
            await store.put("a", b"1", CREATE)


async def test_a_store_without_delete_objects() -> None:
    """Where DeleteObjects is missing, each object is deleted by itself, and that is remembered."""
    async with FaultServer() as server, store_on(server) as store:
        keys = [f"k{i}" for i in range(20)]
        for key in keys:
            await store.put(key, b"x", CREATE)
        server.rule("POST", "^$", error(501, "NotImplemented"), times=100)

        await store.delete_many(keys[:10])
        await store.delete_many(keys[10:])

        assert not server.objects
        assert len(server.sent("POST")) == 1 + Way.lean


async def test_delete_objects_reports_single_failures() -> None:
    """A key that DeleteObjects could not delete is an error, after the others were tried."""
    async with FaultServer() as server, store_on(server) as store:
        answer = b"<DeleteResult><Error><Key>ws/a</Key><Code>AccessDenied</Code></Error></DeleteResult>"
        server.rule("POST", "^$", Reply(200, answer))

        with pytest.raises(AccessDenied, match="ws/a"):
            await store.delete_many(["a", "b"])


async def test_a_key_that_xml_cannot_hold_is_deleted_by_itself() -> None:
    """A control character has no place in a DeleteObjects body."""
    async with FaultServer() as server, store_on(server) as store:
        await store.put("a\x01", b"x", CREATE)

        await store.delete_many(["a\x01"])

        assert not server.objects
        assert not server.sent("POST")


async def test_a_listing_that_does_not_say_where_to_go_on() -> None:
    """A cut listing without a token is an error, never a complete one (B35)."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("GET", "^$", listing([("ws/a", "e", 1, 0.0)], token=None, truncated=True))

        with pytest.raises(StoreError, match="where to go on"):
            await store.list("")


async def test_a_listing_that_goes_round_in_circles() -> None:
    """A repeated token is an error, not an endless loop (B35)."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("GET", "^$", listing([("ws/a", "e", 1, 0.0)], token="again"), times=10)

        with pytest.raises(StoreError, match="again and again"):
            [page async for page in list_pages(store, "")]

        assert len(server.sent("GET")) == 2


async def test_an_empty_page_is_not_the_end() -> None:
    """A page without objects that says there are more is gone on from (B35)."""
    async with FaultServer() as server, store_on(server) as store:
        server.rule("GET", "^$", listing([], token="more"))
        server.rule("GET", "^$", listing([("ws/a b", "e", 1, 0.0)], token=None))

        found = [item.key async for page in list_pages(store, "") for item in page.objects]

        assert found == ["a b"]


async def test_checksums_are_left_out_unless_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many stores reject the SDK's newer checksums, so they are off, unless the user asked for them (B14)."""
    async with FaultServer() as server:
        for configured in (False, True):
            for name, value in server.target.environment().items():
                monkeypatch.setenv(name, value)
            if configured:
                monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
            async with open_store("s3://bucket/ws", options=OPTIONS, runtime=Runtime()) as store:
                await store.put("a", b"x", OVERWRITE)

        sent = [any("checksum" in name for name in request.headers) for request in server.sent("PUT")]
        assert sent == [False, True]


async def test_one_request_for_each_call_with_our_own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's retries are off: a hidden second send would meet the first one's effect (B01)."""
    async with FaultServer() as server:
        for name, value in server.target.environment().items():
            monkeypatch.setenv(name, value)
        server.rule("PUT", "lock", error(500, "InternalError"), apply=True)
        async with open_store("s3://bucket/ws", options=OPTIONS, runtime=Runtime()) as store:
            with pytest.raises(Unanswered):
                await store.put("lock", b"x", CREATE)

        assert len(server.sent("PUT")) == 1


async def test_credentials_are_refreshed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that run out are replaced by their provider's next ones, and the request is sent again (B17)."""
    provider = tmp_path / "provider.py"
    state = tmp_path / "calls"
    provider.write_text(
        "import json, pathlib, datetime\n"
        f"state = pathlib.Path({str(state)!r})\n"
        "n = int(state.read_text()) + 1 if state.exists() else 1\n"
        "state.write_text(str(n))\n"
        "soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=30 if n == 1 else 7200)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'K{n}', 'SecretAccessKey': 's', 'SessionToken': 't',"
        " 'Expiration': soon.isoformat()}))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\nregion = us-east-1\ncredential_process = {sys.executable} {provider}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with FaultServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.target.endpoint)

        def only_k2(request: Any) -> Reply | None:
            return None if "Credential=K2/" in request.headers["authorization"] else error(400, "ExpiredToken")

        server.intercept = only_k2
        async with open_store("s3://bucket/ws", options=OPTIONS, runtime=Runtime()) as raw:
            await retrying(raw).put("flag", b"x", CREATE)

        assert server.objects["ws/flag"][0] == b"x"


async def test_a_client_of_the_callers() -> None:
    """A store works on any client, and leaves it open."""
    async with FaultServer() as server:
        target = server.target
        async with get_session().create_client(
            "s3",
            endpoint_url=target.endpoint,
            region_name="us-east-1",
            aws_access_key_id="k",
            aws_secret_access_key="s",
        ) as client:
            await S3Store(client, "bucket", "", lean=Way.lean).put("a", b"x", CREATE)
            await client.head_object(Bucket="bucket", Key="a")


async def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing credentials are the user's mistake, and the line says what to set."""
    async with FaultServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.target.endpoint)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        async with s3_client(OPTIONS) as client:
            with pytest.raises(ConfigurationError, match="AWS_PROFILE"):
                await S3Store(client, "bucket", "", lean=Way.lean).put("a", b"x", CREATE)


async def test_a_profile_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt profile is one clear line."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match="nobody.*correct AWS_PROFILE"):
        async with s3_client(OPTIONS):
            raise AssertionError("it opened")


async def test_nobody_listens() -> None:
    """A refused connection is no answer, and names the endpoint."""
    async with FaultServer() as server:
        target = server.target
    async with get_session().create_client(
        "s3",
        endpoint_url=target.endpoint,
        region_name="us-east-1",
        aws_access_key_id="k",
        aws_secret_access_key="s",
        config=AioConfig(retries={"total_max_attempts": 1}),
    ) as client:
        with pytest.raises(Unanswered, match=re.escape(target.endpoint)):
            await S3Store(client, "bucket", "", lean=Way.lean).get("a")


def retrying(store: Store) -> RetryingStore:
    return RetryingStore(store, Runtime(), timeout=5.0, retry_for=5.0, events=Events())


_NOW = "Tue, 01 Dec 2026 00:00:00 GMT"
