"""Whatever becomes of machines, network, server and disk, the promises hold.

How long it lasts: ``--chaos SECONDS``; which harm is done when: ``--chaos-seed N``, which a failure prints.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from random import Random, SystemRandom

import anyio
import pytest

from s3queue import Backend, WorkQueue
from s3queue import _keys as keys
from s3queue._index import Index
from s3queue._pool import Per
from s3queue._runtime import Runtime
from s3queue._survey import list_flags
from s3queue.stores import Store
from s3queue.stores._local import LocalStore
from tests.chaos._audit import Completion, broken, read
from tests.chaos._monkey import Fleet, fleet, harass
from tests.chaos._proxy import proxy
from tests.conftest import make_bucket, store_on
from tests.servers._process import HOST, S3Server
from tests.servers.seaweed import restartable_seaweedfs

#: Seconds after the harm by which everything must be finished.
_TIME_TO_END = 90.0
_DISK = 24 << 20

Open = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> Iterator[int]:
    given = pytestconfig.getoption("--chaos-seed")
    seed = SystemRandom().getrandbits(32) if given is None else int(given)
    print(f"the harm follows from --chaos-seed {seed}")
    return seed


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float:
    return float(pytestconfig.getoption("--chaos"))


@pytest.mark.timeout(0)  # the driver has deadlines of its own
@pytest.mark.parametrize("per", ["group", "path"])
def test_a_server_and_its_network(
    seconds: float, seed: int, per: Per, tmp_path: Path, proof: Callable[[str], None]
) -> None:
    """SeaweedFS behind a bad network, killed and started again; processes killed and stopped."""
    rng = Random(seed)
    data, ledgers = tmp_path / "data", tmp_path / "ledgers"
    data.mkdir()
    ledgers.mkdir()
    with (
        restartable_seaweedfs(data) as (server, process),
        proxy(int(server.endpoint.rpartition(":")[2]), seed) as network,
    ):
        behind = S3Server(server.name, f"http://{HOST}:{network.port}", "s3queue", "s3queue-tests", server.bucket)

        def spoil() -> None:
            network.harm = rng.choice([0.0, 0.01, 0.05, 0.2])

        def restart() -> None:
            workers.harm["restarts of the server"] += 1
            process.kill()
            process.start()

        anyio.run(make_bucket, server)
        with fleet(f"s3://{server.bucket}/chaos", ledgers, behind.environment(), seed, per) as workers:
            harass(workers, seconds / 4, rng, spoil, spoil, restart)
            network.harm = 0.0
            workers.settle(_TIME_TO_END)
            workers.harm.update(network.done)
        _judge(workers, lambda: store_on(server, "chaos"), proof, f"seaweedfs, per {per}")


@pytest.mark.timeout(0)
def test_a_folder(seconds: float, seed: int, tmp_path: Path, proof: Callable[[str], None]) -> None:
    """Processes killed and stopped on a folder that they share."""
    ledgers, workspace = tmp_path / "ledgers", tmp_path / "workspace"
    ledgers.mkdir()
    with fleet(str(workspace), ledgers, {}, seed, "path") as workers:
        harass(workers, seconds / 4, Random(seed))
        workers.settle(_TIME_TO_END)
    _judge(workers, lambda: _folder(workspace), proof, "folder, per path")


@pytest.mark.timeout(0)
def test_a_disk_that_fills(seconds: float, seed: int, disk: Path, tmp_path: Path, proof: Callable[[str], None]) -> None:
    """The same, and now and then there is no room for another file."""
    ledgers, workspace, ballast = tmp_path / "ledgers", disk / "workspace", disk / "ballast"
    ledgers.mkdir()

    def fill_or_empty() -> None:
        if ballast.exists():
            ballast.unlink()
            return
        workers.harm["full disks"] += 1
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    with fleet(str(workspace), ledgers, {}, seed, "group") as workers:
        harass(workers, seconds / 4, Random(seed), fill_or_empty, fill_or_empty)
        ballast.unlink(missing_ok=True)
        workers.settle(_TIME_TO_END)
    _judge(workers, lambda: _folder(workspace), proof, "full disk, per group")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@asynccontextmanager
async def _folder(workspace: Path) -> AsyncIterator[Store]:
    yield LocalStore(str(workspace), Runtime())


def _judge(workers: Fleet, opened: Open, proof: Callable[[str], None], what: str) -> None:
    async def look() -> tuple[Index, dict[str, Completion]]:
        async with opened() as store:
            done = {group: Completion(0, {}) for group in await list_flags(store)}
            async for found in WorkQueue(Backend(store)).results():
                if found.hash in done:
                    done[found.hash].epoch = found.epoch
                    done[found.hash].results[found.path] = found.result
            return Index.decode((await store.get(keys.INDEX)).data), done

    index, done = anyio.run(look)
    facts = read(workers.ledgers())
    paths = [path for _, group in index for path in group]
    harm = ", ".join(f"{times} {harm}" for harm, times in sorted(workers.harm.items()))
    proof(f"chaos on {what}: {len(index)} groups, {len(facts.runs)} runs; {harm}")
    wrong = broken(facts, done, dict(index), workers.pauses)
    assert not wrong, "\n".join(wrong)
    assert len(paths) == len(set(paths))
    assert set(paths) == workers.promised
