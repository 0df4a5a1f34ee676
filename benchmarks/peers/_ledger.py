"""The ledger of what ran, shared by the processes of one run: a line of fixed length for each time that an item ran.

Appended to in one write a line, so that lines of several processes never mix. Standard library only: it is imported by
scripts that run in other people's environments.
"""

from __future__ import annotations

import os
import time

LINE = 10


class Ledger:
    """Appends lines, and knows when all items have run, and when the last one was noted here."""

    def __init__(self, path: str, items: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._items = items
        self.noted = 0
        self.last = 0.0

    def note(self, item: int) -> None:
        """This item ran."""
        os.write(self._file, f"{item:0{LINE - 1}}\n".encode())
        self.noted += 1
        self.last = time.perf_counter()

    @property
    def complete(self) -> bool:
        """Whether every item ran, by whichever process."""
        if os.fstat(self._file).st_size < self._items * LINE:
            return False
        size = os.fstat(self._file).st_size
        return len(set(os.pread(self._file, size, 0).split())) >= self._items


def numbers(ledger: Ledger, began: float, cpu: float) -> dict[str, float]:
    """What a script prints: from when it began to its own last item."""
    seconds = max(ledger.last - began, 1e-9)
    return {"items": ledger.noted, "seconds": seconds, "cpu": time.process_time() - cpu}
