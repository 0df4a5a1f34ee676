"""A service for the tests: FastAPI, two queues on one client, and a pool on each. Two workspaces in its environment.

Paths say what becomes of them: ``quick-…`` is done soon, ``while-…`` takes two seconds, ``slow-…`` ten minutes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI, Request

from s3queue import Pool, QueueOptions, open_client, open_queue
from tests.worker import Ledger

OPTIONS = QueueOptions(index_refresh=1)
SECONDS = {"quick": 0.01, "while": 2.0, "slow": 600.0}
ADDRESSES = os.environ["SERVICE_WORKSPACES"].split()
LEDGER = Ledger(Path(os.environ["SERVICE_LEDGER"]))


async def convert(path: str) -> str:
    LEDGER.write(event="began", path=path)
    await anyio.sleep(SECONDS[path.split("-")[0]])
    LEDGER.write(event="ended", path=path)
    return path.upper()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    one, other = ADDRESSES
    async with (
        open_client() if one.startswith("s3://") else nullcontext() as client,
        open_queue(one, options=OPTIONS, client=client) as first,
        open_queue(other, options=OPTIONS, client=client) as second,
        first.pool(convert, workers=4, per="path", grace=4, forever=True) as one_pool,
        second.pool(convert, workers=4, grace=4, forever=True, per="path") as other_pool,
    ):
        app.state.queues = [first, second]
        app.state.pools = [one_pool, other_pool]
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/stats")
async def stats(request: Request) -> list[dict[str, Any]]:
    return [asdict(pool.stats()) for pool in request.app.state.pools]


@app.post("/paths/{number}")
async def add(request: Request, number: int, paths: list[str]) -> int:
    added: int = await request.app.state.queues[number].populate_queue(paths)
    return added


@app.post("/pause/{number}")
async def pause(request: Request, number: int) -> None:
    pool: Pool = request.app.state.pools[number]
    pool.pause()


@app.post("/resume/{number}")
async def resume(request: Request, number: int, workers: int) -> None:
    pool: Pool = request.app.state.pools[number]
    pool.resize(workers)
    pool.resume()
