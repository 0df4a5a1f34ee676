"""SAQ: no-op jobs through one worker process. Run in SAQ's environment; see `benchmarks.peers`."""

import asyncio
import json
import logging
import sys
import time

import uvloop
from saq import Queue, Worker


async def nothing(ctx, path):
    """The job."""


async def main(redis, jobs, concurrency):
    logging.disable(logging.WARNING)
    queue = Queue.from_url(redis, name=f"q{concurrency}-{time.time()}", max_concurrent_ops=concurrency)
    await queue.connect()
    for first in range(0, jobs, 500):
        await asyncio.gather(
            *(queue.enqueue("nothing", path=f"path-{i}") for i in range(first, min(jobs, first + 500)))
        )
    worker = Worker(queue, [nothing], concurrency=concurrency, burst=True, dequeue_timeout=0.1)
    began, cpu = time.perf_counter(), time.process_time()
    await worker.start()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    left = await queue.count("incomplete")
    await queue.disconnect()
    assert not left, left
    return {"paths/s": jobs / seconds, "cpu us/path": cpu * 1e6 / jobs}


if __name__ == "__main__":
    uvloop.install()
    print(json.dumps(asyncio.run(main(**json.loads(sys.argv[1])))))
