"""Progress inside a group: what an owner knows, what a lock says of it, and what the next owner makes of that."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import DamagedWorkspace, HandlerError
from s3queue._journal import WHOLE, Journal
from s3queue._progress import Json, Ledger, Piece, Progress, names_in, result_json
from s3queue._records import LockRecord, LockState

TOKEN = "t" * 16
quick = settings(max_examples=40, deadline=None)


def journal(size: int) -> Journal:
    made = Journal()
    made.begin(size)
    return made


def lock_size(progress: Progress | None) -> int:
    record = LockRecord(state=LockState.HELD, token=TOKEN, epoch=7, ttl=120.0, owner="host:1:abc", progress=progress)
    return len(record.encode())


def saved(owner: Journal, epoch: int, *, leaving: bool = False) -> Piece:
    """The journal's next piece, written."""
    piece, name = owner.piece(TOKEN, epoch, leaving=leaving)
    owner.wrote(Piece.decode(piece.encode()), name)
    return Piece.decode(piece.encode())


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 1.0])
def test_a_lock_of_ten_thousand_paths_stays_small(share: float) -> None:
    """At most 2 KB more, whatever part of 10,000 paths is done, with failures, crashes and pieces besides."""
    work, rng = journal(10_000), random.Random(1)
    work.crashed(None)
    for unit in range(10_000):
        if rng.random() < share:
            work.finished(unit, {"words": unit} if unit % 3 else None, now=0.0)
        elif rng.random() < 0.1:
            work.failed(unit, "ValueError: no", now=0.0, final=False)
    for killer in rng.sample(range(10_000), 300):
        work.crashed(killer)
    while work.needs_piece:
        saved(work, 7)

    progress = work.progress()

    assert progress is not None
    assert lock_size(progress) - lock_size(None) <= 2048
    assert Progress.of(json.loads(json.dumps(progress.fields()))) == _trimmed(progress)


def _trimmed(progress: Progress) -> Progress:
    return Progress(
        **{**{name: getattr(progress, name) for name in progress.__slots__}, "done": progress.done.rstrip(b"\0")}
    )


def test_a_lock_counts_only_what_is_written() -> None:
    """A path with a result is done, for the lock, once the piece with its result is in the store."""
    work = journal(3)
    work.finished(0, None, now=1.0)
    work.finished(1, "result", now=2.0)

    before = work.progress()
    assert work.needs_piece
    piece = saved(work, 1)
    after = work.progress()

    assert before is not None
    assert after is not None
    assert (before.done, after.done) == (b"\x01", b"\x03")
    assert piece.results == {1: "result"}
    assert list(names_in(after.pieces)) == [(1, 1)]
    assert not work.needs_piece


def test_news_are_news_until_a_lock_tells_them() -> None:
    """What happens while a lock is on its way is news for the next one."""
    work = journal(4)
    assert work.news_at is None
    work.finished(0, None, now=5.0)
    work.finished(1, None, now=6.0)
    assert work.news_at == 5.0
    work.progress()
    work.finished(2, None, now=7.0)
    work.acknowledged(6.5)
    assert work.news_at == 6.5
    work.progress()
    work.acknowledged(8.0)
    assert work.news_at is None


def test_the_next_owner_goes_on() -> None:
    """From the lock of a crashed owner and the ledger that it names: done, tries, errors, and all pieces."""
    first = journal(4)
    first.finished(0, "a", now=0.0)
    first.failed(1, "ValueError: b", now=0.0, final=False)
    ledger = saved(first, 3)
    first.finished(2, "c", now=0.0)
    saved(first, 3)
    held = first.progress()
    assert held is not None

    second = Journal.resumed(Progress.of(json.loads(json.dumps(held.fields()))) or Progress(), ledger)
    second.begin(4)

    assert second.left(3) == [1, 3]
    assert (second.tries, second.errors) == ({1: 1}, {1: "ValueError: b"})
    assert list(names_in(second.results()[1])) == [(3, 1), (3, 2)]
    second.finished(1, None, now=0.0)
    second.finished(3, "d", now=0.0)
    assert second.complete
    assert second.results()[0] == {3: Json('"d"')}


def test_a_released_lock_leaves_everything_in_piece_0() -> None:
    """The last piece of an epoch has the results that no other has, and the whole ledger."""
    first = journal(9)
    first.finished(8, [1], now=0.0)
    first.failed(2, "X: y", now=0.0, final=True)
    piece, name = first.piece(TOKEN, 5, leaving=True)

    second = Journal(Piece.decode(piece.encode()).ledger, base=name)
    second.begin(9)

    assert name == (5, 0)
    assert piece.results == {8: Json("[1]")}
    assert second.left(3) == [0, 1, 3, 4, 5, 6, 7]
    assert list(names_in(second.results()[1])) == [(5, 0)]
    second.forgiven()
    assert second.left(3) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert second.tries == {}


def test_crashes_find_the_killer() -> None:
    """The first crash blames all, each further one the path that was named; three in a row are enough."""
    work = journal(4)
    work.crashed(None)
    assert [work.crashes(unit) for unit in range(4)] == [1] * 4
    work.crashed(2)
    assert work.left(3) == [0, 1, 3, 2]
    work.crashed(2)
    assert work.left(3) == [0, 1, 3]
    assert work.crashes(WHOLE) == 1


def test_who_survives_is_innocent() -> None:
    """A path that ends, well or badly, is not to blame for the crashes before."""
    work = journal(3)
    for named in (None, 0, 1):
        work.crashed(named)
    work.failed(0, "E: e", now=0.0, final=False)
    work.finished(1, None, now=0.0)
    assert work.blamed == {}


@pytest.mark.parametrize(
    "result",
    [object(), float("nan"), "\ud800", {1: {2}}, "x" * 65_535],
    ids=["object", "nan", "surrogate", "set", "too large"],
)
def test_results_that_cannot_be_kept(result: object) -> None:
    """A path whose result is no JSON, or over 64 KB of it, is not done; the error says what to do."""
    work = journal(1)
    with pytest.raises(HandlerError, match="return"):
        work.finished(0, result, now=0.0)
    assert work.left(3) == [0]


def test_a_group_keeps_four_megabytes() -> None:
    """One result more is an error, which names the remedies; it counts over all owners."""
    work = journal(100)
    for unit in range(64):
        work.finished(unit, "x" * 65_000, now=0.0)
    piece, name = work.piece(TOKEN, 1, leaving=True)
    later = Journal(piece.ledger, base=name)
    later.begin(100)
    with pytest.raises(HandlerError, match="make smaller groups"):
        later.finished(64, "x" * 65_000, now=0.0)


def test_a_result_is_kept_as_it_was_returned() -> None:
    """What the handler does to its value afterwards changes nothing."""
    value = ["as returned"]
    kept = result_json(value)
    value.append("later")
    assert kept == Json('["as returned"]')


@quick
@given(
    st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))),
    st.dictionaries(st.integers(0, 299), st.integers(1, 9)),
    st.dictionaries(st.integers(0, 299), st.text(max_size=20).filter(lambda text: text.isprintable())),
)
def test_ledgers_come_back(work: tuple[int, set[int]], tries: dict[int, int], errors: dict[int, str]) -> None:
    """As they were written."""
    size, done = work
    bits = sum(1 << unit for unit in done).to_bytes((size + 7) // 8, "little").rstrip(b"\0")
    ledger = Ledger(
        progress=Progress(size=size, done=bits, base=(3, 4), pieces={3: (0, 4)}, stored=5, suspect=True, blamed=tries),
        tries=tries,
        errors=errors,
        over=frozenset(done),
    )
    piece = Piece(token=TOKEN, epoch=4, results={0: {"a": [1]}}, ledger=ledger)
    assert Piece.decode(piece.encode()) == piece


@pytest.mark.parametrize(
    "fields",
    [
        [], "AAAA", {"n": -1}, {"n": 10**9}, {"n": 8, "done": "//8="}, {"n": 8, "done": "?"}, {"n": 8, "done": 3},
        {"base": [1]}, {"base": [1, -1]}, {"pieces": []}, {"pieces": {"1": [2, 1]}}, {"pieces": {"1": [0, 10**9]}},
        {"blamed": {"x": 1}}, {"blamed": {"1": -1}}, {"running": "x"}, {"running": -2}, {"bytes": "1"},
    ],
    ids=repr,
)  # fmt: skip
def test_progress_that_lies_is_damage(fields: object) -> None:
    """Whatever a lock says of its progress is checked, so that it can neither crash nor bloat a worker."""
    with pytest.raises(DamagedWorkspace):
        Progress.of(fields)


@pytest.mark.parametrize(
    "data", [b"", b"[", b"[]", b'{"token":1}', b'{"token":"t"}', b'{"token":"t","epoch":1,"results":[]}']
)
def test_pieces_that_lie_are_damage(data: bytes) -> None:
    """The same for pieces."""
    with pytest.raises(DamagedWorkspace):
        Piece.decode(data)
