"""The dashboard without a browser: what it tells, what it asks of the store, and whom it refuses."""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount

from s3queue import Backend, ConfigurationError, LocalBackend, PermanentError, QueueOptions, S3Backend, WorkQueue
from s3queue import _keys as keys
from s3queue._errors import NotFound
from s3queue._index import Index
from s3queue._workspace import Workspace
from s3queue.cli._app import run
from s3queue.stores import OVERWRITE, Body, Head, Listed, MemoryBucket, MemoryStore, Page, Version
from s3queue.testing import SeededRuntime
from s3queue.web import dashboard
from s3queue.web._watch import SharedWatch
from tests.conftest import client_of
from tests.servers._process import S3Server
from tests.virtual import virtual

TOKEN = "a-token-of-some-length"
HOST = "http://localhost:8710"
OPTIONS = QueueOptions(check_store=False, max_attempts=2, backoff=1)


def queue_on(bucket: MemoryBucket, seed: int = 1, **options: Any) -> WorkQueue:
    runtime = SeededRuntime(seed)
    settings = QueueOptions(check_store=False, **options)
    return WorkQueue(Backend(MemoryStore(runtime, bucket)), options=settings, runtime=runtime)


def watch_on(bucket: MemoryBucket, **options: Any) -> tuple[SharedWatch, MemoryStore]:
    runtime = SeededRuntime(9)
    store = MemoryStore(runtime, bucket)
    workspace = Workspace(store, options=QueueOptions(check_store=False, **options), runtime=runtime)
    return SharedWatch(workspace, every=5), store


def bad(path: str) -> None:
    if path.startswith("bad"):
        raise PermanentError(f"{path} is not what it seems")


# What it sees.


@virtual
async def test_the_counts_are_those_of_status() -> None:
    """Look by look, while a fleet works, the picture says what a full count says."""
    bucket = MemoryBucket()
    queue = queue_on(bucket, lease_ttl=30, completion_grace=20)
    watch, _ = watch_on(bucket, lease_ttl=30, completion_grace=20)
    await queue.populate_queue([f"{'bad' if i % 10 == 0 else 'good'}{i}" for i in range(300)])
    compared = 0

    async def handle(path: str) -> None:
        await SeededRuntime(2).sleep(7)
        bad(path)

    async def work() -> None:
        await queue.run(handle, per="path", workers=16, handle_signals=False)
        await SeededRuntime(2).sleep(60)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        while True:
            await SeededRuntime(2).sleep(5.53)  # never when a handler ends: the two counts are not one
            await watch.refresh()
            assert watch.picture is not None
            assert watch.error == ""
            counts, real = watch.told(0)["counts"], await queue.status()
            seen = {name: counts[name] for name in ("groups", "done", "dead", "leased", "expired", "free")}
            assert seen == {name: getattr(real, name) for name in seen}
            compared += 1

    assert compared > 20
    assert watch.told(0)["counts"]["done"] == 270
    assert watch.told(0)["failed"] == 30
    assert sum(watch.told(0)["series"]["counts"]) == 270


@virtual
async def test_a_look_costs_little() -> None:
    """After the first one, completions are listed only near locks, and a quiet workspace costs three requests."""
    bucket = MemoryBucket()
    queue = queue_on(bucket)
    watch, store = watch_on(bucket)
    await queue.populate_queue([str(i) for i in range(2000)])
    await queue.run(lambda path: None, per="path", handle_signals=False)
    await SeededRuntime(2).sleep(100)
    await queue.sweep()
    await watch.refresh()
    assert store.requests["list"] == 17  # the locks, and the flags by their first digit
    store.requests.clear()

    await SeededRuntime(2).sleep(40)
    await watch.refresh()
    assert watch.looks == 2
    assert store.requests == {"list": 1, "head": 1}  # the locks; whether the index has grown

    await queue.populate_queue(["one more"])
    (item,) = [await queue.get_work()]
    assert item is not None
    await SeededRuntime(2).sleep(40)
    await watch.refresh()
    store.requests.clear()
    await queue.mark_done(item)
    await SeededRuntime(2).sleep(6)
    await watch.refresh()
    assert watch.told(0)["counts"]["done"] == 2001
    assert store.requests["list"] == 2  # the locks, and the flags around the one that is gone


@virtual
async def test_nobody_looks_twice() -> None:
    """However many ask at once, one look is made; and none before `every` seconds have passed."""
    bucket = MemoryBucket()
    await queue_on(bucket).populate_queue(["a"])
    watch, store = watch_on(bucket)

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(watch.refresh)
    await watch.refresh()

    assert watch.looks == 1
    assert store.requests["list"] == 17


@virtual
async def test_it_catches_up_after_a_pause() -> None:
    """What was claimed, completed and unlocked while nobody looked is found by listing everything anew."""
    bucket = MemoryBucket()
    queue = queue_on(bucket)
    watch, _ = watch_on(bucket)
    await queue.populate_queue([str(i) for i in range(50)])
    await watch.refresh()

    await queue.run(lambda path: None, per="path", handle_signals=False)
    await SeededRuntime(2).sleep(100)
    await queue.sweep()
    await watch.refresh()

    assert watch.told(0)["counts"]["done"] == 50


@virtual
async def test_owners_and_expired_leases() -> None:
    """Leases are counted by their owner; past their time they are nobody's."""
    bucket = MemoryBucket()
    queue, other = queue_on(bucket, 1, lease_ttl=60), queue_on(bucket, 2, lease_ttl=60)
    watch, _ = watch_on(bucket)
    await queue.populate_queue(["a", "b", "c"])
    assert await queue.get_work()
    assert await queue.get_work()
    assert await other.get_work()
    await watch.refresh()
    owners = watch.told(0)["owners"]

    assert [(one["owner"][:6], one["leases"]) for one in owners["shown"]] == [("sim:1:", 2), ("sim:2:", 1)]
    assert (owners["count"], owners["unread"]) == (2, 0)

    await SeededRuntime(3).sleep(70)
    await watch.refresh()
    assert watch.told(0)["owners"]["count"] == 0
    assert watch.told(0)["counts"]["expired"] == 3


@virtual
async def test_trouble_is_told_and_passes() -> None:
    """An index that cannot be read is said to whoever looks; once it can be, so is the workspace."""
    bucket = MemoryBucket()
    bucket.write(keys.INDEX, b"nonsense", OVERWRITE, now=0)
    watch, _ = watch_on(bucket)

    await watch.refresh()
    assert "zstd" in watch.told(0)["error"]
    assert watch.told(0)["phase"] == "loading"

    bucket.remove(keys.INDEX)
    await SeededRuntime(2).sleep(6)
    await watch.refresh()
    assert (watch.told(0)["error"], watch.told(0)["phase"]) == ("", "ready")


class Vast:
    """A store of a million groups, every second one done, made up as it is asked."""

    name, lists_in_order = "vast", True

    def __init__(self, count: int) -> None:
        self.groups = sorted(hashlib.sha1(b"%d" % i, usedforsecurity=False).hexdigest() for i in range(count))
        self.flags = [keys.flag(group) for group in self.groups[::2]]
        text = "\n".join(f"{group},s3://scans/{i}.pdf" for i, group in enumerate(self.groups))
        self.index = Index(text.encode()).encode()

    async def get(self, key: str) -> Body:
        await anyio.lowlevel.checkpoint()
        if key != keys.INDEX:
            raise NotFound(key)
        return Body(version=Version("1"), size=len(self.index), modified=0, date=1e9, data=self.index)

    async def head(self, key: str) -> Head:
        body = await self.get(key)
        return Head(version=body.version, size=body.size, modified=0, date=1e9)

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        await anyio.lowlevel.checkpoint()
        after = resume or start_after
        start = bisect_right(self.flags, after) if after else bisect_left(self.flags, prefix)
        found = [key for key in self.flags[start : start + limit] if key.startswith(prefix)]
        objects = [Listed(key=key, version=Version("1"), size=99, modified=1e9 - 60) for key in found]
        return Page(objects=objects, next=found[-1] if len(found) == limit else None, date=1e9)


@pytest.mark.slow
async def test_a_large_workspace_is_shown_at_once() -> None:
    """While it is still being counted everything is answered from memory: no view lists anything."""
    store = Vast(100_000)
    app = dashboard(Backend(store), options=OPTIONS)  # type: ignore[arg-type] # it has all that is asked for
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOST) as client:
        first: dict[str, Any] = {}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.get, "/api/state")  # the look goes on in here
            while first.get("phase") != "ready":
                answer = await client.get("/api/state")
                first = answer.json()
        assert first["counts"] | {"groups": 100_000, "done": 50_000, "free": 50_000} == first["counts"]
        assert first["rate"] > 0


# The application.


@asynccontextmanager
async def browsing(app: Any, base: str = HOST, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base, headers=headers) as client:
        yield client


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A workspace in which one group is done, and one is dead."""
    workspace = tmp_path / "ws"
    async with WorkQueue(LocalBackend(str(workspace)), options=OPTIONS) as queue:
        await queue.populate_queue(["good", "bad <b>one</b>"])
        await queue.run(bad, per="path", handle_signals=False)
    return workspace


pytestmark = pytest.mark.anyio  # also for the fixture below, which is async


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_look_follows_the_first_answer(folder: Path) -> None:
    """The first answer is there at once; the one after it knows the workspace, its failures and their tracebacks."""
    async with browsing(dashboard(LocalBackend(str(folder)))) as client:
        assert (await client.get("/api/state")).json()["phase"] == "loading"
        told = (await client.get("/api/state")).json()
        assert told["phase"] == "ready"
        assert told["counts"] == {
            "groups": 2, "done": 1, "dead": 1, "leased": 0, "expired": 0, "waiting": 0, "free": 0, "unread": 0,
        }  # fmt: skip
        (failure,) = (await client.get("/api/failures")).json()["groups"]
        assert failure["dead"] is True
        assert failure["last"]["kind"] == "PermanentError"
        assert [path["path"] for path in failure["failed"]] == ["bad <b>one</b>"]
        (attempt,) = (await client.get(f"/api/groups/{failure['hash']}")).json()["attempts"]
        assert "Traceback" in attempt["detail"]


async def test_on_s3(seaweed: S3Server, prefix: str) -> None:
    """On a real S3 server: counts, owners, failures with their tracebacks, a retry, and what is finished meanwhile."""
    async with client_of(seaweed) as client:
        queue = WorkQueue(S3Backend(client, f"s3://{seaweed.bucket}/{prefix}"), options=OPTIONS)
        await queue.populate_queue([*(f"good {i}" for i in range(20)), "bad one"])
        await queue.run(bad, per="path", handle_signals=False)
        await queue.populate_queue(["late", "later", "latest"])
        items = [await queue.get_work(), await queue.get_work()]
        app = dashboard(queue, allow_actions=True, every=0, options=OPTIONS)  # so each answer is followed by a look
        async with browsing(app) as browser:
            await browser.get("/api/state")
            told = (await browser.get("/api/state")).json()
            assert (told["phase"], told["error"], told["paths"]) == ("ready", "", 24)
            assert told["counts"] == {
                "groups": 24, "done": 20, "dead": 1, "leased": 2, "expired": 0, "waiting": 0, "free": 1, "unread": 0,
            }  # fmt: skip
            (owner,) = told["owners"]["shown"]
            assert (owner["leases"], told["owners"]["unread"]) == (2, 0)
            assert re.fullmatch(r".+:\d+:\w+", owner["owner"])
            assert sum(told["series"]["counts"]) == 20

            (failure,) = (await browser.get("/api/failures")).json()["groups"]
            assert (failure["dead"], failure["named"] or failure["failed"][0]["path"]) == (True, "bad one")
            (attempt,) = (await browser.get(f"/api/groups/{failure['hash']}")).json()["attempts"]
            assert "PermanentError: bad one is not what it seems" in attempt["detail"]

            for item in items:
                assert item is not None
                await queue.mark_done(item)
            retried = await browser.post(f"/api/groups/{failure['hash']}/retry", headers={"x-s3queue": "1"})
            assert retried.json() == {"retried": True}
            counts = (await browser.get("/api/state")).json()["counts"]
            assert (counts["done"], counts["dead"], counts["leased"], counts["waiting"]) == (22, 0, 0, 1)
            assert (await browser.get("/api/failures")).json()["groups"] == []
        assert (await queue.status()).done == 22


async def test_retry_needs_permission_and_intent(folder: Path) -> None:
    """Only where actions are allowed, and only with a header that another site cannot send."""
    ours = {"x-s3queue": "1"}
    async with browsing(dashboard(LocalBackend(str(folder)))) as client:
        await client.get("/api/state")
        group = (await client.get("/api/failures")).json()["groups"][0]["hash"]
        assert (await client.post(f"/api/groups/{group}/retry", headers=ours)).status_code == 403
    async with browsing(dashboard(LocalBackend(str(folder)), allow_actions=True)) as client:
        await client.get("/api/state")
        url = f"/api/groups/{group}/retry"
        assert (await client.get(url)).status_code == 405
        assert (await client.post(url)).status_code == 403
        for sent in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "http://localhost:9999"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            assert (await client.post(url, headers={**ours, **sent})).status_code == 403, sent
        assert (await client.post("/api/groups/" + "0" * 40 + "/retry", headers=ours)).status_code == 404
        assert (await client.get("/api/state")).json()["counts"]["dead"] == 1
        answer = await client.post(url, headers={**ours, "origin": HOST, "sec-fetch-site": "same-origin"})
        assert answer.json() == {"retried": True}
        assert (await client.get("/api/state")).json()["counts"]["dead"] == 0
        assert (await client.post(url, headers=ours)).json()["retried"] in (True, False)


@pytest.mark.parametrize(
    ("hosts", "host", "status"),
    [
        (None, "localhost:1", 200), (None, "127.0.0.1", 200), (None, "[::1]:8710", 200),
        (None, "evil.example", 421), (None, "localhost.evil.example:8710", 421), (None, "", 421), (None, "[::1", 421),
        (["queue.example"], "queue.example", 200), (["queue.example"], "localhost", 421), (["*"], "any.example", 200),
    ],
)  # fmt: skip
async def test_only_known_host_names_are_answered(
    folder: Path, hosts: Sequence[str] | None, host: str, status: int
) -> None:
    """A name of somebody else's that leads here (DNS rebinding) gets nothing."""
    async with browsing(dashboard(LocalBackend(str(folder)), hosts=hosts)) as client:
        for path in ("/", "/static/app.js", "/api/state", "/metrics"):
            answer = await client.get(path, headers={"host": host})
            assert answer.status_code == status
            assert status == 200 or str(folder) not in answer.text


async def test_with_a_token_nothing_is_shown_without_it(folder: Path) -> None:
    """Not by the page, the data, the metrics or an action; a wrong one is as good as none."""
    app = dashboard(LocalBackend(str(folder)), token=TOKEN, allow_actions=True)
    async with browsing(app, "http://queue.example") as client:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {TOKEN}"},
            {"cookie": f"s3queue_dashboard={TOKEN}"},
            {"cookie": "s3queue_dashboard=wrong; ]["},
        ):
            for path in ("/api/state", "/api/failures", "/metrics", "/api/groups/" + "0" * 40, "/nothing"):
                assert (await client.get(path, headers=headers)).status_code == 401, (path, headers)
            assert (await client.post("/api/groups/x/retry", headers=headers)).status_code == 401
            page = await client.get("/", headers=headers)
            assert (page.status_code, page.headers["location"]) == (303, "login")
        assert (await client.get("/api/state", headers={"authorization": f"bearer {TOKEN}"})).status_code == 200


async def test_signing_in(folder: Path) -> None:
    """The token buys a cookie that scripts cannot read and other sites cannot send; it is not the token itself."""
    async with browsing(dashboard(LocalBackend(str(folder)), token=TOKEN), "https://queue.example") as client:
        assert (await client.get("/login")).status_code == 200
        assert (await client.get("/static/app.css")).status_code == 200
        assert (await client.post("/login", data={"token": "wrong"})).status_code == 403
        assert (await client.post("/login", data={"token": "x" * 5000})).status_code == 413
        foreign = await client.post("/login", data={"token": TOKEN}, headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403
        answer = await client.post("/login", data={"token": TOKEN})
        cookie = answer.headers["set-cookie"].lower()
        assert answer.status_code == 303
        assert all(word in cookie for word in ("httponly", "samesite=strict", "secure", "path=/"))
        assert TOKEN not in cookie
        assert (await client.get("/api/state")).status_code == 200


@pytest.mark.parametrize("token", ["", "short", "fifteen-letters", "ümlauts in a token that is long"])
def test_a_weak_token_is_refused(token: str, tmp_path: Path) -> None:
    """It would protect nothing."""
    with pytest.raises(ConfigurationError, match="at least 16"):
        dashboard(LocalBackend(str(tmp_path)), token=token)


async def test_every_answer_is_guarded_by_headers(folder: Path) -> None:
    """Pages, data, files, errors and refusals: none may be framed, sniffed, kept, or run what is not ours."""
    async with browsing(dashboard(LocalBackend(str(folder)))) as client:
        for path, host in [("/", "localhost"), ("/api/state", "localhost"), ("/static/app.js", "localhost"),
                           ("/nothing", "localhost"), ("/static/nothing", "localhost"), ("/", "evil")]:  # fmt: skip
            headers = (await client.get(path, headers={"host": host})).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"


async def test_it_can_be_mounted(folder: Path) -> None:
    """Below a prefix of a service, for whose queue it needs no client of its own, and no lifespan."""
    async with WorkQueue(LocalBackend(str(folder)), options=OPTIONS) as queue:
        service = Starlette(routes=[Mount("/queue", dashboard(queue, token=TOKEN))])
        async with browsing(service) as client:
            assert (await client.get("/queue/api/state")).status_code == 401
            assert (await client.get("/queue/")).headers["location"] == "login"
            answer = await client.post("/queue/login", data={"token": TOKEN})
            assert "path=/queue;" in answer.headers["set-cookie"].lower() + ";"
            await client.get("/queue/api/state")
            assert (await client.get("/queue/api/state")).json()["counts"]["done"] == 1


async def test_prometheus_can_read_the_metrics(folder: Path) -> None:
    """From the first scrape on, by the parser that Prometheus's own client has."""
    async with browsing(dashboard(LocalBackend(str(folder)))) as client:
        answer = await client.get("/metrics")
    values: Mapping[tuple[str, ...], float] = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }

    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert values["s3queue_up",] == 1
    assert values["s3queue_groups", "done"] == 1
    assert values["s3queue_groups", "dead"] == 1
    assert values["s3queue_queue_depth",] == 0
    assert values["s3queue_dashboard_requests_total", "list"] > 0


async def test_a_scrape_tells_a_store_in_trouble(folder: Path) -> None:
    """Whoever scrapes then does not wait for the store; once it is well again, that is told, too."""
    index = folder / keys.INDEX
    sound = index.read_bytes()
    index.write_bytes(b"no index")
    async with browsing(dashboard(LocalBackend(str(folder)), every=0)) as client:
        assert "s3queue_up 0.0" in (await client.get("/metrics")).text
        index.write_bytes(sound)
        assert "s3queue_up 0.0" in (await client.get("/metrics")).text
        assert "s3queue_up 1.0" in (await client.get("/metrics")).text


async def test_odd_questions_get_sensible_answers(folder: Path) -> None:
    """Numbers that are none, groups that are none, a store that fails."""
    async with browsing(dashboard(LocalBackend(str(folder)))) as client:
        assert (await client.get("/api/groups/zz")).status_code == 404
        await client.get("/api/state?window=evil")
        for offset in ("-1", "x", "9" * 30, "٣"):
            assert (await client.get("/api/failures", params={"offset": offset})).json()["offset"] == 0
        assert (await client.get("/api/failures?offset=7")).json()["groups"] == []
        assert (await client.get("/static/../_app.py")).status_code == 404
        (folder / "failed_flags").rename(folder / "elsewhere")
        (folder / "failed_flags").write_text("")
        answer = await client.get("/api/failures")
        assert answer.status_code in (200, 502)
        assert "Traceback" not in answer.text


def test_the_page_is_only_ours() -> None:
    """No inline script or style, no other host, no markup made from data."""
    static = files("s3queue.web") / "static"
    script = (static / "app.js").read_text()

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)
    for name in ("index.html", "login.html"):
        page = (static / name).read_text()
        assert not re.search(r"""\sstyle=|\son\w+=|https?:|["']//|<style""", page)
        assert page.count("<script") == len(re.findall(r'<script src="static/\w+\.js" defer></script>', page))


# The command.


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--host", "0.0.0.0"], "--token"),
        (["--host", "192.168.7.7"], "--token"),
        (["--host", "::"], "--token"),
        (["--token", "short"], "at least 16"),
        (["--host", "no.such.host.invalid", "--token", TOKEN], "cannot listen on no.such.host.invalid"),
        (["--port", "99999"], "--port"),
    ],
)
def test_the_command_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    """Other machines may only look with a token; exit code 2."""
    assert run(["dashboard", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, not a traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["dashboard", str(tmp_path), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install() -> None:
    """In Python as on the command line."""
    code = """if True:
        import sys
        sys.modules["starlette"] = None
        try:
            import s3queue.web
        except ImportError as error:
            sys.exit(0 if "s3queue[web]" in str(error) else str(error))
        sys.exit("it imported")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
