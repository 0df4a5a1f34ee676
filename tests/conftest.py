"""Fixtures: the servers, started once a run and only if a test wants them, and clients for them."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from s3queue.stores._port import Store
from s3queue.stores._s3 import S3Store
from tests.servers._process import S3Server
from tests.servers.moto import moto_server
from tests.servers.seaweed import seaweedfs

_prefixes = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds",
        type=int,
        default=50,
        help="how many fleets to simulate, and how many schedules to draw from large scopes",
    )

    parser.addoption("--chaos", type=float, default=120, help="for how many seconds real processes are harmed")
    parser.addoption("--chaos-seed", type=int, default=None, help="which harm is done; otherwise chance decides")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = (report for of_one_kind in terminalreporter.stats.values() for report in of_one_kind)
    proofs = sorted(
        (report.nodeid, line)
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, line in report.user_properties
        if name == "proof"
    )
    if proofs:
        terminalreporter.section("proof")
        for _, line in proofs:
            terminalreporter.line(str(line))


@pytest.fixture
def proof(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say at the end of the run what was proved. As a property of the test, it gets here from any process."""
    return functools.partial(record_property, "proof")


@pytest.fixture
def seeds(pytestconfig: pytest.Config) -> int:
    """How many seeds this run is worth."""
    return int(pytestconfig.getoption("--seeds"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"seaweed", "moto", "s3_server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("server")
        if item.path.parent.name in ("interleavings", "simulation", "mutants", "chaos"):
            item.add_marker("proof")
        if item.path.parent.name == "chaos":
            item.add_marker("server")


@pytest.fixture(autouse=True, scope="session")
def no_settings_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a developer has configured must not decide a test: neither AWS nor a proxy."""
    nowhere = str(Path(tmp_path_factory.getbasetemp()) / "no-such-file")
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name.upper().startswith("AWS_") or name.lower().endswith("_proxy"):
                environment.delenv(name)
        environment.setenv("AWS_CONFIG_FILE", nowhere)
        environment.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, with its bucket."""
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        _in_a_thread(make_bucket, server)
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A simulated S3 server, with its bucket."""
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        _in_a_thread(make_bucket, server)
        yield server


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test of this run uses."""
    return f"t{next(_prefixes)}"


@asynccontextmanager
async def bare_client_of(server: S3Server, **config: Any) -> AsyncIterator[Any]:
    """A client with explicit credentials, as a user would make one."""
    async with get_session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=AioConfig(
            **{
                "retries": {"total_max_attempts": 1},
                "max_pool_connections": 64,
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                **config,
            }
        ),
    ) as client:
        yield client


@asynccontextmanager
async def client_of(server: S3Server, **config: Any) -> AsyncIterator[Any]:
    """The same; the bucket exists afterwards."""
    async with bare_client_of(server, **config) as client:
        if server.bucket not in {bucket["Name"] for bucket in (await client.list_buckets())["Buckets"]}:
            await client.create_bucket(Bucket=server.bucket)
        yield client


def _in_a_thread(function: Callable[[S3Server], Awaitable[None]], server: S3Server) -> None:
    """Run it apart from a loop that may run here: an asynchronous test may be the first to ask for a fixture."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(anyio.run, function, server).result()


async def make_bucket(server: S3Server) -> None:
    """Unless it is there."""
    async with client_of(server):
        pass


@asynccontextmanager
async def store_on(server: S3Server, prefix: str, *, lean: bool = True) -> AsyncIterator[Store]:
    """An S3 store below `prefix`; it takes the lean request path if told to, and only then."""
    async with client_of(server) as client:
        store = S3Store(client, server.bucket, prefix, lean=lean)
        yield store
        assert store.is_lean is lean


OpenStore = Callable[[], AbstractAsyncContextManager[Store]]
