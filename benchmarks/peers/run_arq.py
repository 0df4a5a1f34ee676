"""arq: no-op jobs through one worker process. Run in arq's environment; see `benchmarks.peers`."""

import asyncio
import json
import logging
import sys
import time

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker


async def nothing(ctx, path):
    """The job."""


async def main(redis, jobs, concurrency):
    logging.disable(logging.WARNING)
    pool = await create_pool(RedisSettings.from_dsn(redis), default_queue_name=f"q{concurrency}-{time.time()}")
    for first in range(0, jobs, 500):
        await asyncio.gather(*(pool.enqueue_job("nothing", f"path-{i}") for i in range(first, min(jobs, first + 500))))
    worker = Worker(
        [nothing], queue_name=pool.default_queue_name, redis_pool=pool, burst=True, max_jobs=concurrency,
        poll_delay=0.0, keep_result=0, handle_signals=False,
    )  # fmt: skip
    began, cpu = time.perf_counter(), time.process_time()
    await worker.async_run()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert worker.jobs_complete == jobs, worker.jobs_complete
    await worker.close()
    return {"paths/s": jobs / seconds, "cpu us/path": cpu * 1e6 / jobs}


if __name__ == "__main__":
    uvloop.install()
    print(json.dumps(asyncio.run(main(**json.loads(sys.argv[1])))))
