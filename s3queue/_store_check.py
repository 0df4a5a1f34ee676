"""The start-up check: proves on scratch keys that a store does what the lease protocol needs, before any work.

Stores that ignore a condition answer 200 where others answer 412, and then two machines own one group (GCS through its
S3 face, Garage, old Ceph, …). So each refusal is provoked, and the object read afterwards: what counts is what stands.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from s3queue import _keys as keys
from s3queue._errors import (
    AccessDenied,
    CredentialsExpired,
    NotFound,
    StoreError,
    StoreFull,
    StoreUnsuitable,
    Throttled,
    Unanswered,
    Unsupported,
)
from s3queue._events import Events
from s3queue._intent import Intent, Unknown, Won, settle
from s3queue._runtime import Runtime
from s3queue._tasks import task_group
from s3queue.stores._listing import list_pages
from s3queue.stores._port import CREATE, Create, Replace, Store, Version

__all__ = ["CHECKS", "Check", "Problem", "Scratch", "check_store", "examine", "name_of", "scratch_keys"]

_RACERS = 16
#: A refusal that lasts this long though nothing stands in the way is the store's answer.
_SETTLE_FOR = 8.0
_CLEAN_UP_FOR = 20.0
_USE_ANOTHER = "use a store that honours conditional writes (If-None-Match and If-Match), in a version that does"
_ALL_ACTIONS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
_STRONG = "use a store with strong read-after-write consistency"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a store, and what can be done about it; a line together."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


class Scratch:
    """Scratch keys of one check, and the steps on them."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.store = store
        self.runtime = runtime
        self.prefix = f"{keys.SCRATCH}{runtime.token()}-"
        self.used: dict[str, None] = {}

    def key(self, name: str) -> str:
        key = self.prefix + name
        self.used[key] = None
        return key

    def body(self) -> bytes:
        return f"s3queue start-up check {self.runtime.token()}".encode("ascii")

    async def put(self, key: str, data: bytes, mode: Create | Replace) -> Version | None:
        """The version that we wrote; None if the write was refused. Settled like every conditional write."""
        intent = Intent(key=key, data=data, mode=mode, ours=lambda body: body == data)
        outcome = await settle(self.store, self.runtime, intent, until=self.runtime.monotonic() + _SETTLE_FOR)
        match outcome:
            case Won(version=version):
                return version
            case Unknown(cause=Unanswered() | Throttled() as cause):
                raise cause
        return None

    async def read(self, key: str) -> tuple[bytes, Version] | None:
        try:
            body = await self.store.get(key)
        except NotFound:
            return None
        return body.data, body.version

    async def listed(self, start_after: str | None = None) -> list[str]:
        """The scratch keys that a listing shows, in its order if it has one. Other checks may run at the same time."""
        pages = list_pages(self.store, keys.SCRATCH, start_after=start_after)
        found = [item.key async for page in pages for item in page.objects]
        return found if self.store.lists_in_order else sorted(found)

    async def clean_up(self) -> None:
        with anyio.CancelScope(deadline=self.runtime.monotonic() + _CLEAN_UP_FOR, shield=True):
            await self.store.delete_many(list(self.used))


Check = Callable[[Scratch], Awaitable[Problem | None]]


@asynccontextmanager
async def scratch_keys(store: Store, runtime: Runtime, events: Events) -> AsyncIterator[Scratch]:
    """Scratch keys, which are removed after the block, however it ends."""
    scratch = Scratch(store, runtime)
    try:
        yield scratch
    finally:
        try:
            await scratch.clean_up()
        except StoreError as error:
            events.emit("store.scratch_left", logging.WARNING, prefix=scratch.prefix, error=str(error))


async def check_store(store: Store, runtime: Runtime, events: Events, *, unsafe: bool = False) -> None:
    """Raise `StoreUnsuitable` with one line that names the store, what failed and what to do; `unsafe` only warns.

    Scratch keys are removed, also on failure. Raises `Unanswered` or `Throttled` if the store cannot be reached, and
    `StoreFull`.
    """
    async with scratch_keys(store, runtime, events) as scratch:
        problem = await _first_problem(scratch)
    if problem is None:
        return
    if not unsafe:
        raise StoreUnsuitable(f"{store.name}: {problem}")
    events.emit("store.unsafe", logging.WARNING, store=store.name, problem=str(problem))


def access_remedy(store: Store, actions: str, *, writes: bool) -> str:
    """What to do where the store refuses access; `actions` are S3's names of what it must allow."""
    if not store.name.startswith("s3://"):
        return "give this user permission to read and write in the folder"
    also = ", and give what the bucket's policy demands of a PUT as `put_args`" if writes else ""
    return f"check the credentials, allow {actions}{also}"


async def _first_problem(scratch: Scratch) -> Problem | None:
    for check in CHECKS:
        problem = await examine(check, scratch)
        if problem is not None:
            return problem
    return None


async def examine(check: Check, scratch: Scratch) -> Problem | None:
    """The problem that one check finds.

    Raises what says nothing of the store's ability: `Throttled`, `Unanswered`, `StoreFull`, `CredentialsExpired`,
    `ConfigurationError`.
    """
    try:
        return await check(scratch)
    except (Throttled, Unanswered, StoreFull, CredentialsExpired):
        raise
    except Unsupported as error:
        return Problem(f"the store does not support what {name_of(check)} needs ({error})", _USE_ANOTHER)
    except AccessDenied as error:
        return Problem(
            f"access denied while checking {name_of(check)} ({error})",
            access_remedy(scratch.store, _ALL_ACTIONS, writes=True),
        )
    except StoreError as error:
        return Problem(f"the store failed on {name_of(check)} ({error})", _USE_ANOTHER)


def name_of(check: Check) -> str:
    """What a check is about, in words."""
    return check.__name__.removeprefix("_check_").replace("_", " ")


async def _check_read_after_write(scratch: Scratch) -> Problem | None:
    # Look before the first write: some stores make a bucket that is not there, and its name may be misspelled.
    await scratch.listed()
    key, data = scratch.key("a"), scratch.body()
    if await scratch.put(key, data, CREATE) is None:
        return Problem("a conditional create of a new object was refused", _USE_ANOTHER)
    current = await scratch.read(key)
    if current is None:
        return Problem("an object that was just written cannot be read", _STRONG)
    if current[0] != data:
        return Problem(
            "the store kept other bytes than were sent (a checksum's framing, most likely)",
            "set request_checksum_calculation to when_required",
        )
    return None


async def _check_conditional_create(scratch: Scratch) -> Problem | None:
    key, data = scratch.key("b"), scratch.body()
    await scratch.put(key, data, CREATE)
    await scratch.put(key, scratch.body(), CREATE)
    current = await scratch.read(key)
    if current is None or current[0] != data:
        return Problem("it ignores If-None-Match on PUT, so two machines would own one group", _USE_ANOTHER)
    return None


async def _check_conditional_update(scratch: Scratch) -> Problem | None:
    key, second = scratch.key("c"), scratch.body()
    first = await scratch.put(key, scratch.body(), CREATE)
    if first is None or await scratch.put(key, second, Replace(first)) is None:
        return Problem(
            "it refused If-Match with the ETag that it had just given, quoted and unquoted, so leases could not be "
            "renewed",
            _USE_ANOTHER,
        )
    await scratch.put(key, scratch.body(), Replace(first))
    current = await scratch.read(key)
    if current is None or current[0] != second:
        return Problem("it ignores If-Match on PUT, so a lost lease would be written over", _USE_ANOTHER)
    return None


async def _check_update_of_a_missing_object(scratch: Scratch) -> Problem | None:
    key = scratch.key("d")
    version = await scratch.put(key, scratch.body(), CREATE)
    await scratch.store.delete(key)
    if version is not None:
        await scratch.put(key, scratch.body(), Replace(version))
    if await scratch.read(key) is not None:
        return Problem("If-Match on a missing object creates it, so a lost lease would come back", _USE_ANOTHER)
    return None


async def _check_listing(scratch: Scratch) -> Problem | None:
    names = sorted(scratch.key(f"list-{i}") for i in range(4))
    for name in names:
        await scratch.put(name, scratch.body(), CREATE)
    await scratch.store.delete(names[1])
    listed = await scratch.listed()
    if [key for key in listed if key in names] != [names[0], names[2], names[3]]:
        return Problem(
            "a listing does not show what was just written and deleted", "use a store with strongly consistent LIST"
        )
    if not scratch.store.lists_in_order:
        return None
    after = [key for key in await scratch.listed(start_after=names[1]) if key in names]
    if after != names[2:]:
        return Problem(
            "a listing is not in key order from start-after",
            "use a store that honours both, or that is known to lack them",
        )
    return None


async def _check_racing_creates(scratch: Scratch) -> Problem | None:
    key = scratch.key("race")
    winners: list[Version] = []
    unanswered: list[StoreError] = []

    async def race() -> None:
        try:
            version = await scratch.put(key, scratch.body(), CREATE)
        except (Unanswered, Throttled) as error:
            # SeaweedFS under load leaves a racer without an answer now and then. What counts is who won.
            unanswered.append(error)
            return
        if version is not None:
            winners.append(version)

    async with task_group() as tasks:
        for _ in range(_RACERS):
            tasks.start_soon(race)
    if not winners and unanswered:
        raise unanswered[0]
    current = await scratch.read(key)
    if len(winners) == 1 and current is not None and current[1] == winners[0]:
        return None
    return Problem(
        f"{len(winners)} of {_RACERS} concurrent conditional creates of one object succeeded, not 1, or a later one "
        "was written over the first",
        _USE_ANOTHER,
    )


#: In this order: each rests on what those before it have shown.
CHECKS: tuple[Check, ...] = (
    _check_read_after_write,
    _check_conditional_create,
    _check_conditional_update,
    _check_update_of_a_missing_object,
    _check_listing,
    _check_racing_creates,
)
