"""pailq: no-op jobs. Run in pailq's environment; see `benchmarks.peers`."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from _ledger import Ledger, numbers
from pail import Pail


def fill(queue, items):
    """Enqueue them all."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda item: queue.enqueue({"item": item}), range(items)))
    return {}


def work(queue, items, path):
    """One process: its own loop, without its wait of 20 s when there is nothing."""
    ledger = Ledger(path, items)
    began, cpu = time.perf_counter(), time.process_time()
    while not ledger.complete:
        if not queue.work_once(lambda payload: ledger.note(payload["item"])):
            time.sleep(0.05)
    return numbers(ledger, began, cpu)


def main(action, endpoint, access_key, secret_key, bucket, items, ledger, workers):
    queue = Pail.connect(bucket, endpoint_url=endpoint, access_key_id=access_key, secret_access_key=secret_key,
                         region="us-east-1")  # fmt: skip
    return fill(queue, items) if action == "fill" else work(queue, items, ledger)


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
