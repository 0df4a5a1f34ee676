"""The doctor: finds what is wrong with a store, says what to do, and leaves the workspace as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from s3queue import LocalBackend, WorkQueue
from s3queue._doctor import Diagnosis, diagnose
from s3queue._events import Events
from s3queue._options import QueueOptions
from s3queue._prices import S3_EXPRESS, S3_STANDARD, prices_of
from s3queue._runtime import Runtime, SeededRuntime
from s3queue.cli._app import run
from s3queue.stores import LocalStore, MemoryStore, Store
from tests.conftest import store_on
from tests.servers._process import S3Server
from tests.servers.fault import FaultServer, Request, error
from tests.test_store_check import only, scripted
from tests.virtual import virtual

CHECKS = (
    "read after write", "conditional create", "conditional update", "update of a missing object", "listing",
    "racing creates",
)  # fmt: skip
LINES = ("answer", "write", "read", "list", "delete", "clock", *CHECKS, "request rate", "index", "cost")
#: Few connections and short waits: what is tested is what is said, not how fast it goes.
OPTIONS = QueueOptions(connections=4, request_timeout=5, retry_for=0.2)


async def lines_of(store: Store, runtime: Runtime | None = None) -> dict[str, Diagnosis]:
    told: list[Diagnosis] = []
    lines = await diagnose(store, OPTIONS, runtime or Runtime(), Events(), told.append)
    assert told == lines
    return {line.name: line for line in lines}


def verdicts(lines: dict[str, Diagnosis], *names: str) -> set[str]:
    return {lines[name].verdict for name in names}


@virtual
async def test_a_sound_store() -> None:
    """Every line is there and well, in virtual time too, and nothing is left."""
    runtime = SeededRuntime(1, epoch=1_790_000_000)
    store = MemoryStore(runtime)

    lines = await lines_of(store, runtime)

    assert tuple(lines) == LINES
    assert verdicts(lines, *set(LINES) - {"index"}) == {"ok"}
    assert lines["clock"].values["offset"] == pytest.approx(0.5)
    assert lines["index"].verdict == "note"
    assert not len(store.bucket)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["seaweed", "moto"])
@pytest.mark.asyncio
async def test_real_servers(server: str, prefix: str, request: pytest.FixtureRequest) -> None:
    """What they do not honour aside (moto checks, then acts), a server passes; latencies are told; nothing is left."""
    async with store_on(request.getfixturevalue(server), prefix) as store:
        lines = await lines_of(store)

        assert not (await store.list("")).objects
    assert tuple(lines) == LINES
    assert verdicts(lines, *set(LINES) - {"index", "racing creates", "request rate"}) == {"ok"}
    assert server == "moto" or lines["racing creates"].verdict == "ok"
    assert abs(lines["clock"].values["offset"]) < 60
    assert 0 < (lines["write"].seconds or 0) < OPTIONS.request_timeout
    assert lines["cost"].values["per_million_groups"] == pytest.approx(10.01)


@pytest.mark.asyncio
async def test_a_folder(tmp_path: Path) -> None:
    """The groups of a workspace are not touched: what was there is there, byte for byte, and nothing else."""
    await WorkQueue(LocalBackend(tmp_path / "ws")).populate_queue(["a", "b"])
    before = contents(tmp_path / "ws")

    lines = await lines_of(LocalStore(tmp_path / "ws", Runtime()))

    assert verdicts(lines, *LINES) == {"ok"}
    assert lines["index"].values == {"groups": 2}
    assert contents(tmp_path / "ws") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".s3queue" not in path.parts
    }


@pytest.mark.asyncio
async def test_a_store_that_ignores_conditions() -> None:
    """All that it gets wrong is told, not only the first thing; what works is told as well."""
    async with FaultServer(ignore_conditions=True) as server, scripted(server) as store:
        lines = await lines_of(store)

        assert not server.objects
    assert verdicts(lines, "conditional create", "conditional update", "racing creates") == {"failed"}
    assert "If-None-Match" in lines["conditional create"].found
    assert "honours conditional writes" in lines["conditional create"].remedy
    assert verdicts(lines, "write", "read", "list", "delete", "read after write") == {"ok"}


@pytest.mark.asyncio
async def test_no_permission_to_delete() -> None:
    """It is named, the rest is not tried, and what stayed behind is named too."""
    async with FaultServer() as server, scripted(server) as store:
        denied = only(error(403, "AccessDenied"), method="DELETE")
        many = only(error(403, "AccessDenied"), method="POST")
        server.intercept = lambda request: denied(request) or many(request)  # type: ignore[operator]

        lines = await lines_of(store)

        assert len(server.objects) == 1
    assert lines["delete"].verdict == "failed"
    assert "s3:DeleteObject" in lines["delete"].remedy
    assert verdicts(lines, *CHECKS, "request rate") == {"skipped"}
    assert lines["clean up"].verdict == "failed"
    assert "store_check/" in lines["clean up"].remedy
    assert verdicts(lines, "write", "read", "list", "clock") == {"ok"}


@pytest.mark.asyncio
async def test_no_permission_to_write() -> None:
    """Of what could not be written, nothing is said to be read."""
    async with FaultServer() as server, scripted(server) as store:
        server.intercept = only(error(403, "AccessDenied"), method="PUT")  # type: ignore[assignment]

        lines = await lines_of(store)

    assert lines["write"].verdict == "failed"
    assert "s3:PutObject" in lines["write"].remedy
    assert lines["read"].verdict == "skipped"


@pytest.mark.asyncio
async def test_a_bucket_that_is_not_there() -> None:
    """One line, and no more requests."""
    async with FaultServer() as server, scripted(server) as store:
        server.intercept = lambda request: error(404, "NoSuchBucket") if request.query else None

        lines = await lines_of(store)

    assert [(line.name, line.verdict) for line in lines.values()] == [("answer", "failed")]
    assert "no such bucket" in lines["answer"].found


@pytest.mark.asyncio
async def test_a_store_that_throttles() -> None:
    """Refusals under load are counted, and are a note."""
    calls = 0

    def every_other(request: Request) -> object:
        nonlocal calls
        if "rate-" in request.key and request.method == "PUT":
            calls += 1
            return error(503, "SlowDown") if calls % 2 else None
        return None

    async with FaultServer() as server, scripted(server) as store:
        server.intercept = every_other  # type: ignore[assignment]

        lines = await lines_of(store)

    assert lines["request rate"].verdict == "note"
    assert lines["request rate"].values["Throttled"] > 0


@virtual
async def test_a_wrong_clock() -> None:
    """Is worth a word, but no fault."""
    lines = await lines_of(MemoryStore(Runtime()), SeededRuntime(1, skew=-3600))

    assert lines["clock"].verdict == "note"
    assert lines["clock"].values["offset"] == pytest.approx(3600.5)


@pytest.mark.parametrize(
    ("store", "prices"),
    [("/folder", None), ("s3://b/ws at https://x", S3_STANDARD), ("s3://b--use1-az4--x-s3/ws", S3_EXPRESS)],
)
def test_prices(store: str, prices: object) -> None:
    """They follow from the store's name."""
    assert prices_of(store) is prices


def test_a_millions_cost() -> None:
    """Two PUTs a group are ten dollars a million; deletions are free."""
    assert S3_STANDARD.cost({"put": 2e6, "delete": 1e6, "delete_many": 5}) == pytest.approx(10.0)
    assert S3_STANDARD.cost({"get": 1e6, "head": 1e6, "list": 1e6}) == pytest.approx(5.8)


@pytest.mark.slow
def test_the_command(
    seaweed: S3Server, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines for people, JSON for scripts, and exit codes for both."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    workspace = f"s3://{seaweed.bucket}/{prefix}"

    assert run(["doctor", workspace]) == 0
    assert "ok         conditional create: If-None-Match: * is honoured" in capsys.readouterr().out
    assert run(["doctor", workspace, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == list(LINES)
    assert run(["doctor", "s3://no-such-bucket/ws"]) == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    assert run(["doctor", workspace]) == 3
    assert "check the endpoint" in capsys.readouterr().out
