"""buquet: no-op tasks. Run in buquet's environment; see `benchmarks.peers`."""

import asyncio
import json
import os
import sys
import time
import uuid

from _ledger import Ledger, numbers
from buquet import PollingStrategy, Worker, WorkerRunOptions, connect


async def fill(queue, items):
    """Submit them all."""
    for first in range(0, items, 250):
        await queue.submit_many([("nothing", {"item": i}) for i in range(first, min(items, first + 250))])
    return {}


async def work(queue, items, path, workers):
    """One process: as many of its workers as told, on all shards; until every item ran somewhere."""
    ledger = Ledger(path, items)

    async def nothing(given):
        ledger.note(given["item"])
        return

    async def one():
        worker = Worker(queue, f"worker-{uuid.uuid4()}", queue.all_shards())
        worker.task("nothing")(nothing)
        await worker.run(WorkerRunOptions(polling=PollingStrategy.fixed(20), with_monitor=False))

    began, cpu = time.perf_counter(), time.process_time()
    running = [asyncio.ensure_future(one()) for _ in range(workers)]
    while not ledger.complete:  # noqa: ASYNC110 - other processes write it too
        await asyncio.sleep(0.05)
    found = numbers(ledger, began, cpu)
    await asyncio.sleep(0.2)  # the last completions are on their way
    for task in running:
        task.cancel()
    return found


async def main(action, endpoint, access_key, secret_key, bucket, items, ledger, workers):
    os.environ.update(AWS_ACCESS_KEY_ID=access_key, AWS_SECRET_ACCESS_KEY=secret_key)
    queue = await connect(endpoint=endpoint, bucket=bucket, region="us-east-1")
    return await (fill(queue, items) if action == "fill" else work(queue, items, ledger, workers))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(**json.loads(sys.argv[1])))), flush=True)
    os._exit(0)  # its workers have no other end
