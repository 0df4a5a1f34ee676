"""pawn-queue: no-op messages. Run in pawn-queue's environment; see `benchmarks.peers`."""

import asyncio
import json
import logging
import sys
import time
import uuid

from _ledger import Ledger, numbers
from pawn_queue import PawnQueue

TOPIC = "items"


async def fill(queue, items):
    """Publish them all."""
    await queue.create_topic(TOPIC)
    producer = await queue.register_producer("filler")
    for first in range(0, items, 50):
        some = range(first, min(items, first + 50))
        await asyncio.gather(*(producer.publish(TOPIC, {"item": i}) for i in some))
    return {}


async def work(queue, items, path):
    """One process: poll for as many as one poll gives, end them all at once, and again."""
    ledger = Ledger(path, items)
    consumer = await queue.register_consumer(f"worker-{uuid.uuid4()}", topics=[TOPIC])

    async def handle(message):
        ledger.note(message.payload["item"])
        await message.ack()

    began, cpu = time.perf_counter(), time.process_time()
    while not ledger.complete:
        messages = await consumer.poll()
        await asyncio.gather(*map(handle, messages))
        if not messages:
            await asyncio.sleep(0.05)
    return numbers(ledger, began, cpu)


async def main(action, endpoint, access_key, secret_key, bucket, items, ledger, workers):
    logging.disable(logging.WARNING)
    s3 = {"endpoint_url": endpoint, "bucket_name": bucket, "aws_access_key_id": access_key,
          "aws_secret_access_key": secret_key, "use_ssl": False}  # fmt: skip
    settings = {
        "s3": s3,
        "polling": {"max_messages_per_poll": workers, "visibility_timeout_seconds": 120.0},
        "concurrency": {"strategy": "conditional_write"},
    }
    async with await PawnQueue.from_config(settings) as queue:
        return await (fill(queue, items) if action == "fill" else work(queue, items, ledger))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(**json.loads(sys.argv[1])))))
