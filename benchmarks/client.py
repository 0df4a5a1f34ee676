"""What one request costs: aiobotocore's client API, our lean path, and obstore (Rust), verb by verb."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from benchmarks._common import Numbers, Row, medians, pinned, run_async, server_of, table
from s3queue.stores import CREATE, Store
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of
from tests.servers._process import S3Server

ROUNDS = 5
REQUESTS = 200
#: Of the verbs that are about many objects.
BATCHES = 10
COLUMNS = (
    "server", "verb", "aiobotocore", "s3queue", "obstore", "ours/SDK", "ours/obstore",
    "aiobotocore/s", "s3queue/s", "obstore/s",
)  # fmt: skip
BODY = b'{"v":1,"state":"held","owner":"host:1:abc","token":"0123456789abcdef","epoch":1,"ttl":120.0,"beat":0}'

Verb = Callable[[int], Awaitable[Any]]


class Ours:
    """Our store; with the SDK's client API, or without it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def verbs(self, round_: str) -> dict[str, Verb]:
        store = self._store
        return {
            "PUT create": lambda i: store.put(f"{round_}/{i}", BODY, CREATE),
            "HEAD": lambda i: store.head(f"{round_}/{i}"),
            "GET": lambda i: store.get(f"{round_}/{i}"),
            "LIST 1000": lambda i: store.list("listed/"),
            "DELETE": lambda i: store.delete(f"{round_}/{i}"),
            "DELETE 100": lambda i: store.delete_many([f"{round_}/{i}-{n}" for n in range(100)]),
        }


class Obstore:
    """obstore's S3 store."""

    def __init__(self, server: S3Server, prefix: str) -> None:
        from obstore.store import S3Store as Rust

        self._store = Rust(
            server.bucket,
            endpoint=server.endpoint,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        self._prefix = prefix

    def verbs(self, round_: str) -> dict[str, Verb]:
        store, at = self._store, f"{self._prefix}/{round_}"
        return {
            "PUT create": lambda i: store_put(store, f"{at}/{i}"),
            "HEAD": lambda i: head(store, f"{at}/{i}"),
            "GET": lambda i: get(store, f"{at}/{i}"),
            "LIST 1000": lambda i: listed(store, f"{self._prefix}/listed/"),
            "DELETE": lambda i: delete(store, f"{at}/{i}"),
            "DELETE 100": lambda i: delete(store, [f"{at}/{i}-{n}" for n in range(100)]),
        }


async def store_put(store: Any, key: str) -> None:
    import obstore

    await obstore.put_async(store, key, BODY, mode="create")


async def head(store: Any, key: str) -> None:
    import obstore

    await obstore.head_async(store, key)


async def get(store: Any, key: str) -> None:
    import obstore

    await (await obstore.get_async(store, key)).bytes_async()


async def listed(store: Any, prefix: str) -> None:
    import obstore

    async for _ in obstore.list(store, prefix, chunk_size=1000):
        return


async def delete(store: Any, keys: str | list[str]) -> None:
    import obstore

    await obstore.delete_async(store, keys)


async def measure(verb: Verb, count: int) -> tuple[float, float]:
    """(CPU seconds, seconds) a request, one after the other; CPU of all threads."""
    await verb(0)
    cpu, wall = time.process_time(), time.perf_counter()
    for i in range(1, count + 1):
        await verb(i)
    return (time.process_time() - cpu) / count, (time.perf_counter() - wall) / count


async def compare(server: S3Server) -> dict[str, list[Numbers]]:
    """By verb, a round each: CPU milliseconds of each side, and its requests a second. The sides take turns."""
    found: dict[str, list[Numbers]] = {}
    async with client_of(server) as client:
        sides: dict[str, Any] = {
            "aiobotocore": Ours(S3Store(client, server.bucket, "sdk", lean=False)),
            "s3queue": Ours(S3Store(client, server.bucket, "lean")),
        }
        if find_spec("obstore") is not None:
            sides["obstore"] = Obstore(server, "rust")
        for prefix in ("sdk", "lean", "rust"):
            filler = S3Store(client, server.bucket, prefix)
            for i in range(1000):
                await filler.put(f"listed/{i:04}", BODY, CREATE)
        for round_ in range(ROUNDS):
            for side, one in sides.items():
                for name, verb in one.verbs(f"r{round_}").items():
                    cpu, wall = await measure(verb, BATCHES if name[-1].isdigit() else REQUESTS)
                    rounds = found.setdefault(name, [{} for _ in range(ROUNDS)])
                    rounds[round_] |= {side: cpu * 1000, f"{side}/s": 1 / wall}
    return found


def run() -> list[Row]:
    """Print and return one row a server and verb."""
    rows = []
    for where in ("seaweedfs", "null"):
        with server_of(where) as server, pinned():
            found = run_async(compare, server)
        rows += [{"server": where, "verb": verb, **_with_ratios(medians(rounds))} for verb, rounds in found.items()]
    print(f"CPU ms a request, and requests/s one after the other; medians of {ROUNDS} rounds of {REQUESTS}")
    if find_spec("obstore") is None:
        print("obstore is not installed (extra bench): left out")
    print(table(rows, COLUMNS))
    return rows


def _with_ratios(numbers: Numbers) -> Numbers:
    return numbers | {
        f"ours/{name}": numbers["s3queue"] / numbers[side]
        for name, side in {"SDK": "aiobotocore", "obstore": "obstore"}.items()
        if side in numbers
    }
