"""The only place where s3queue touches clocks, sleep, randomness, unique ids, process and host names.

Everything above takes a `Runtime`, so that a whole fleet runs in virtual time from one seed.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import socket
import time
from random import Random, SystemRandom

import anyio

__all__ = ["Random", "Runtime", "SeededRuntime"]


class Runtime:
    """The real world: the event loop's monotonic clock, the host's wall clock, the system's randomness (`rng`)."""

    def __init__(self, *, rng: Random | None = None) -> None:
        self.rng: Random = rng if rng is not None else SystemRandom()

    def monotonic(self) -> float:
        """Seconds of the event loop's monotonic clock (virtual where the loop's clock is)."""
        try:
            return asyncio.get_running_loop().time()  # what anyio would ask, after six times as long
        except RuntimeError:
            return anyio.current_time()

    def wall(self) -> float:
        """POSIX seconds by this host's clock: for people to read, never compared with another host's."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait, by the monotonic clock; a negative time is none."""
        await anyio.sleep(max(0.0, seconds))

    def token(self) -> str:
        """16 URL-safe characters (96 random bits), different at each call: the name of one intent."""
        return secrets.token_urlsafe(12)

    def owner(self) -> str:
        """Who this process is, for people: host, process id, and a few random characters."""
        return f"{self.host()}:{os.getpid()}:{secrets.token_hex(3)}"

    def host(self) -> str:
        """This machine's name, for people."""
        return socket.gethostname()

    def thread_time(self) -> float:
        """Seconds of a monotonic clock that any thread may read and that no event loop virtualises."""
        return time.monotonic()


class SeededRuntime(Runtime):
    """A runtime whose randomness follows from a `seed` and whose wall clock is the loop's clock plus an offset.

    `epoch` is the offset, in POSIX seconds, and `skew` how many seconds this process's wall clock is wrong by.
    `skew` may be changed at any time: it is how a test makes this process's wall clock wrong or jump.
    """

    def __init__(self, seed: int, *, epoch: float = 1_790_000_000.0, skew: float = 0.0) -> None:
        super().__init__(rng=Random(seed))
        self.seed = seed
        self.epoch = epoch
        self.skew = skew

    def monotonic(self) -> float:
        return anyio.current_time()

    def wall(self) -> float:
        return self.epoch + self.monotonic() + self.skew

    def token(self) -> str:
        return base64.urlsafe_b64encode(self.rng.randbytes(12)).decode("ascii")

    def owner(self) -> str:
        return f"{self.host()}:{self.seed}:{self.rng.randbytes(3).hex()}"

    def host(self) -> str:
        return "sim"
