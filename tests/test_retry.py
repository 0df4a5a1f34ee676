"""What is sent again, what is not, and for how long: the policy as a table, the store in virtual time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue._errors import (
    AccessDenied,
    CredentialsExpired,
    NotFound,
    PreconditionFailed,
    StoreError,
    Throttled,
    Unanswered,
    Unsupported,
    WriteConflict,
)
from s3queue._events import Event, Events
from s3queue._runtime import SeededRuntime
from s3queue.stores._port import (
    CREATE,
    OVERWRITE,
    Body,
    Deleted,
    Head,
    Page,
    PutMode,
    Replace,
    Store,
    Version,
    Written,
)
from s3queue.stores._retry import RetryingStore, RetryPolicy
from tests.virtual import virtual

POLICY = RetryPolicy(retry_for=30.0)
PASSING = (Throttled, CredentialsExpired, Unanswered, WriteConflict)
LASTING = (NotFound, PreconditionFailed, AccessDenied, Unsupported, StoreError)
REPLACE = Replace(Version("v"))
KINDS = ("get", "head", "delete", "delete_many", "list", "overwrite", "create", "replace")
#: What the scripted store does with a request: answer after some seconds, or raise.
Deed = float | Exception

BODY = Body(version=Version("v"), size=1, modified=0.0, date=0.0, data=b"x")


class ScriptedStore:
    """A store that does one deed of a script after another, and answers at once when it is over."""

    name = "scripted"
    lists_in_order = True

    def __init__(self, *deeds: Deed, forever: Deed = 0.0) -> None:
        self.deeds = deque(deeds)
        self.forever = forever
        self.began: list[float] = []

    async def _do(self) -> None:
        self.began.append(trio.current_time())
        deed = self.deeds.popleft() if self.deeds else self.forever
        if isinstance(deed, Exception):
            raise deed
        await trio.sleep(deed)

    async def get(self, key: str) -> Body:
        await self._do()
        return BODY

    async def head(self, key: str) -> Head:
        await self._do()
        return Head(version=Version("v"), size=1, modified=0.0, date=0.0)

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        await self._do()
        return Written(version=Version("v"), date=0.0)

    async def delete(self, key: str) -> Deleted:
        await self._do()
        return Deleted(date=0.0)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        await self._do()
        return Deleted(date=0.0)

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        await self._do()
        return Page(objects=[], next=f"{prefix} {start_after} {resume} {limit}", date=0.0)


def retrying(store: Store, told: Callable[[Event], None] | None = None) -> RetryingStore:
    return RetryingStore(store, SeededRuntime(1), timeout=10.0, retry_for=30.0, events=Events(told))


def request(store: RetryingStore, kind: str) -> Awaitable[object]:
    """One request of each kind that there is."""
    match kind:
        case "delete_many":
            return store.delete_many(["a", "b"])
        case "overwrite":
            return store.put("k", b"x", OVERWRITE)
        case "create":
            return store.put("k", b"x", CREATE)
        case "replace":
            return store.put("k", b"x", REPLACE)
    method: Callable[[str], Awaitable[object]] = getattr(store, kind)
    return method("k")


def is_repeated(kind: str, error: type[StoreError]) -> bool:
    """The table at the top of the module."""
    if kind in ("create", "replace"):
        return error in (Throttled, CredentialsExpired)
    return error in PASSING


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("error", [*PASSING, *LASTING])
def test_what_is_worth_another_attempt(error: type[StoreError], repeatable: bool) -> None:
    """Only what passes; and after a conditional write only what proves that nothing was applied."""
    wait = POLICY.decide(error(), repeatable=repeatable, attempt=1, elapsed=0.0, chance=0.5)

    assert (wait is not None) == is_repeated("get" if repeatable else "create", error)


@pytest.mark.parametrize(
    ("attempt", "chance", "expected"),
    [
        (1, 0.0, 0.01),
        (1, 0.5, 0.055),
        (2, 0.0, 0.02),
        (4, 0.5, 0.44),
        (7, 0.0, 0.5),
        (7, 0.5, 2.75),
        (10_000, 0.5, 2.75),
    ],
)
def test_waits_double_up_to_a_bound(attempt: int, chance: float, expected: float) -> None:
    """Between a tenth and the whole of it, by chance."""
    wait = POLICY.decide(Throttled(), repeatable=True, attempt=attempt, elapsed=0.0, chance=chance)

    assert wait == pytest.approx(expected)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(1, 10**6), st.floats(0, 100), st.floats(0, 1, exclude_max=True))
def test_no_attempt_begins_after_the_time_is_over(attempt: int, elapsed: float, chance: float) -> None:
    """Whatever chance says, a wait that would end too late is not begun."""
    wait = POLICY.decide(Unanswered(), repeatable=True, attempt=attempt, elapsed=elapsed, chance=chance)

    if wait is not None:
        assert 0 < wait <= POLICY.most
        assert elapsed + wait < POLICY.retry_for
    else:
        assert elapsed + POLICY.most >= POLICY.retry_for


@pytest.mark.parametrize("error", [*PASSING, *LASTING])
@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_what_is_sent_again(kind: str, error: type[StoreError]) -> None:
    """Each kind of request, with each kind of refusal."""
    store = ScriptedStore(error("no", date=5.0), error("no", date=5.0))

    if is_repeated(kind, error):
        await request(retrying(store), kind)
        assert len(store.began) == 3
        return
    with pytest.raises(error, match="^no$") as caught:
        await request(retrying(store), kind)
    assert len(store.began) == 1
    assert caught.value.date == 5.0


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_trouble_that_lasts_ends_in_time(kind: str) -> None:
    """The last attempt begins within `retry_for`; the error is the last one, and says how often it was tried."""
    store = ScriptedStore(forever=Throttled("slow down", date=7.0))

    with pytest.raises(Throttled, match=r"^slow down \(after \d+ attempts in \d+\.\d s\)$") as caught:
        await request(retrying(store), kind)

    assert caught.value.date == 7.0
    assert 20.0 < store.began[-1] - store.began[0] < 30.0
    assert 8 <= len(store.began) <= 40
    assert trio.current_time() == store.began[-1]


@pytest.mark.parametrize("kind", ["create", "replace"])
@virtual
async def test_a_conditional_write_without_an_answer_is_not_sent_again(kind: str) -> None:
    """It may have been applied: whoever sent it has to read."""
    store = ScriptedStore(forever=1e6)
    began = trio.current_time()

    with pytest.raises(Unanswered, match=r"scripted: no answer to put of 'k' within 10 s"):
        await request(retrying(store), kind)

    assert len(store.began) == 1
    assert trio.current_time() - began == pytest.approx(10.0)


@virtual
async def test_silence_is_asked_again() -> None:
    """A read that hangs is cut off at its deadline, and tried again."""
    store = ScriptedStore(1e6)
    began = trio.current_time()

    assert await retrying(store).get("k") == BODY
    assert len(store.began) == 2
    assert 10.0 < trio.current_time() - began < 11.0


@virtual
async def test_silence_that_lasts_ends_in_time() -> None:
    """At most `retry_for` and the deadline of one request."""
    store = ScriptedStore(forever=1e6)
    began = trio.current_time()

    with pytest.raises(Unanswered, match="after 3 attempts"):
        await retrying(store).get("k")

    assert trio.current_time() - began < 30.0 + 10.0


@virtual
async def test_a_timeout_within_the_store_is_no_answer() -> None:
    """Whoever's deadline it was."""
    store = ScriptedStore(TimeoutError())

    with pytest.raises(Unanswered):
        await retrying(store).put("k", b"", CREATE)


@virtual
async def test_other_errors_pass() -> None:
    """A bug below is not tried again, and not dressed up as trouble of the store."""
    store = ScriptedStore(RuntimeError("a bug"))

    with pytest.raises(RuntimeError, match="^a bug$"):
        await retrying(store).get("k")
    assert len(store.began) == 1


@virtual
async def test_cancellation_passes_at_once() -> None:
    """In the middle of a request, and in the middle of a wait."""
    for store in (ScriptedStore(forever=1e6), ScriptedStore(forever=Throttled())):
        with trio.move_on_after(5.0) as scope:
            await retrying(store).get("k")
        assert scope.cancelled_caught


@virtual
async def test_requests_are_counted_by_verb() -> None:
    """Those of retries, those that fail, and each thousand of deletions: they are all paid for."""
    store = ScriptedStore(Throttled(), NotFound())
    retry = retrying(store)

    with pytest.raises(NotFound):
        await retry.head("k")
    for kind in KINDS:
        await request(retry, kind)
    await retry.delete_many([str(i) for i in range(2001)])
    await retry.delete_many([])

    assert retry.requests == Counter(get=1, head=3, delete=1, delete_many=4, list=1, put=3)


@virtual
async def test_another_deadline_for_the_same_store() -> None:
    """Requests are counted together."""
    store = ScriptedStore(forever=100.0)
    retry = retrying(store)
    patient = retry.with_timeout(120.0)

    assert await patient.get("k") == BODY
    with pytest.raises(Unanswered):
        await retry.put("k", b"", CREATE)
    assert (patient.requests, patient.name, patient.lists_in_order) == (Counter(get=1, put=1), "scripted", True)


@virtual
async def test_a_longer_deadline_tries_no_longer() -> None:
    """A store that cannot be reached is given up as early as ever."""
    began = trio.current_time()

    with pytest.raises(Unanswered):
        await retrying(ScriptedStore(*[Unanswered("refused")] * 1000)).with_timeout(300.0).get("k")

    assert trio.current_time() - began <= 30


@virtual
async def test_a_silence_is_told_once() -> None:
    """When nothing has been answered for three seconds, whoever waits hears that it is no hang; an answer ends it."""
    told: list[Event] = []
    silent = [Unanswered("refused")] * 11
    store = retrying(ScriptedStore(*silent, NotFound("none"), *silent[:2], 0.1, *silent), told.append)

    with pytest.raises(NotFound):
        await store.with_timeout(5.0).get("k")
    await store.get("k")
    assert [event.fields["error"] for event in told if event.name == "store.silent"] == ["refused"]
    await store.get("k")

    seconds = [event.fields["seconds"] for event in told if event.name == "store.silent"]
    assert len(seconds) == 2
    assert all(3 <= one < 9 for one in seconds)


@virtual
async def test_thousands_of_deletions_have_more_time() -> None:
    """One deadline for each request that they take."""
    assert await retrying(ScriptedStore(25.0)).delete_many(["k"] * 3000) == Deleted(date=0.0)
    assert await retrying(ScriptedStore(9.0)).delete_many([]) == Deleted(date=0.0)


@virtual
async def test_a_retry_is_told() -> None:
    """With what, how often, why, and how long it waits; and each try, with how it ended."""
    told: list[Event] = []
    store = ScriptedStore(Throttled("slow down"), WriteConflict("in the way"))

    await retrying(store, told.append).get("k")

    tries = [event.fields for event in told if event.name == "store.request"]
    assert [fields["outcome"] for fields in tries] == ["Throttled", "WriteConflict", "ok"]
    assert {(fields["verb"], fields["count"]) for fields in tries} == {("get", 1)}
    told = [event for event in told if event.name != "store.request"]
    assert [event.name for event in told] == ["store.throttled", "store.retry", "store.retry"]
    del told[0]
    assert [(event.fields["verb"], event.fields["attempt"], event.fields["error"]) for event in told] == [
        ("get", 1, "slow down"),
        ("get", 2, "in the way"),
    ]
    waits = [after - before for before, after in zip(store.began, store.began[1:], strict=False)]
    assert waits == pytest.approx([event.fields["wait"] for event in told])


@virtual
async def test_a_listing_keeps_its_arguments() -> None:
    """Also when it is sent again."""
    page = await retrying(ScriptedStore(Throttled())).list("p", start_after="a", resume="r", limit=7)

    assert page.next == "p a r 7"
