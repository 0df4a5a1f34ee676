"""Locks, flags and failure records: exact round trips, sizes that tell, and untrusted bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import DamagedWorkspace, HandlerError
from s3queue._lease_rules import failed, released
from s3queue._options import QueueOptions
from s3queue._progress import RESULTS_LIMIT
from s3queue._records import (
    DETAIL_LIMIT,
    RELEASED_LIMIT,
    Failure,
    Flag,
    LockRecord,
    LockState,
    describe,
    looks_released,
    timestamp,
)

TOKEN = "t" * 16
held = st.builds(
    LockRecord,
    state=st.just(LockState.HELD),
    token=st.text("abcXYZ-_09", min_size=16, max_size=16),
    epoch=st.integers(0, 9_999_998),
    failures=st.integers(0, 1000),
    ttl=st.floats(1, 1e6),
    owner=st.text(st.characters(codec="utf-8"), max_size=40),
    beat=st.integers(0, 10**6),
    since=st.text("0123456789-T:.+", max_size=30),
)
text = st.text(st.characters(codec="utf-8"), max_size=40)
counts = st.integers(0, 2**53 - 1)
results = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)
flags = st.builds(Flag, token=text, epoch=counts, owner=text, at=text, result=results)
failures = st.builds(
    Failure, token=text, epoch=counts, attempt=counts, owner=text, at=text, error=text, kind=text, detail=text
)
quick = settings(derandomize=True, deadline=None, max_examples=100)


@quick
@given(held)
def test_a_live_lease_comes_back_and_is_large(lock: LockRecord) -> None:
    """A live lease is never under 64 bytes, so that a listing tells it from a released one."""
    assert LockRecord.decode(lock.encode()) == lock
    assert not looks_released(len(lock.encode()))


@pytest.mark.parametrize("epoch", [0, 1, 99_999, 9_999_998])
@pytest.mark.parametrize("fails", [True, False])
def test_a_released_lease_is_small(epoch: int, fails: bool) -> None:
    """A released or dead lock is under 64 bytes, for any epoch, count and back-off that can be."""
    options = QueueOptions(max_attempts=1000, backoff=600, backoff_max=86_400)
    lock = LockRecord(state=LockState.HELD, token="x" * 16, epoch=epoch, failures=997, ttl=120.0)
    for _ in range(3):
        lock = (
            failed(lock, token=TOKEN, dead=False, options=options) if fails else released(lock, token=TOKEN, wait=1e9)
        )
        assert looks_released(len(lock.encode()))
        assert LockRecord.decode(lock.encode()) == lock
        assert lock.epoch == epoch


def test_the_smallest_live_lease_is_large_enough() -> None:
    """Even of an owner without a name."""
    lock = LockRecord(state=LockState.HELD, token="", epoch=0, ttl=1.0)
    assert len(lock.encode()) >= RELEASED_LIMIT


@pytest.mark.parametrize("state", [LockState.FREE, LockState.DEAD])
def test_the_largest_released_lease_is_small_enough(state: LockState) -> None:
    """With the highest numbers that reading lets pass, one take-over and one failure later."""
    with pytest.raises(DamagedWorkspace):
        LockRecord.decode(b'{"s":"f","e":9999999,"f":0,"b":0,"t":""}')
    with pytest.raises(DamagedWorkspace):
        LockRecord.decode(b'{"s":"f","e":0,"f":9999,"b":0,"t":""}')
    largest = LockRecord(state=state, token=TOKEN, epoch=9_999_999, failures=9999, backoff=99_999)
    assert len(largest.encode()) == RELEASED_LIMIT - 1


@pytest.mark.parametrize(
    ("size", "released"), [(0, False), (1, True), (47, True), (63, True), (64, False), (10**6, False)]
)
def test_sizes_tell(size: int, released: bool) -> None:
    """An empty lock is olmOCR's, and held."""
    assert looks_released(size) is released


@quick
@given(flags, failures)
def test_flags_and_failures_come_back(flag: Flag, failure: Failure) -> None:
    """Any text, any count, any JSON."""
    assert Flag.decode(flag.encode()) == flag
    assert Failure.decode(failure.encode()) == failure


def test_olmocrs_empty_bodies() -> None:
    """An empty lock has no owner, no ttl and epoch 0; an empty flag has no result."""
    lock, flag = LockRecord.decode(b""), Flag.decode(b"")
    assert (lock.state, lock.owner, lock.ttl, lock.epoch) == (LockState.HELD, "", None, 0)
    assert (flag.token, flag.result) == ("", None)


def test_unknown_fields_are_ignored() -> None:
    """A later version may add fields."""
    lock = LockRecord(state=LockState.HELD, token=TOKEN, epoch=1, ttl=9.0)
    fields = {**json.loads(lock.encode()), "v": 7, "new": {"a": [1]}}
    assert LockRecord.decode(json.dumps(fields).encode()) == lock

    free = LockRecord(state=LockState.FREE, token=TOKEN, epoch=1, failures=2, backoff=3)
    assert LockRecord.decode(json.dumps({**json.loads(free.encode()), "new": None}).encode()) == free
    flag = Flag(token=TOKEN, epoch=1, result=[1])
    assert Flag.decode(json.dumps({**json.loads(flag.encode()), "newer": [], "v": 2}).encode()) == flag


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "free "),
        ("state", None),
        ("state", ["held"]),
        ("state", {}),
        ("state", "f"),
        ("token", None),
        ("token", 1),
        ("token", "\ud800"),
        ("epoch", -1),
        ("epoch", 1.0),
        ("epoch", True),
        ("epoch", "1"),
        ("epoch", 2**53),
        ("epoch", 10**400),
        ("failures", None),
        ("failures", 10**4),
        ("failures", -1),
        ("ttl", None),
        ("ttl", 0),
        ("ttl", -1),
        ("ttl", True),
        ("ttl", "120"),
        ("ttl", math.nan),
        ("ttl", math.inf),
        ("ttl", 1e10),
        ("ttl", 10**400),
        ("owner", 7),
        ("owner", "host \udfff"),
        ("beat", 1e3),
        ("since", 1_790_000_000),
    ],
)
def test_a_lock_that_cannot_be_is_damage(field: str, value: Any) -> None:
    """One wrong field is enough: such a lock is neither ours nor past nor free."""
    fields = json.loads(LockRecord(state=LockState.HELD, token=TOKEN, epoch=1, ttl=9.0).encode())
    assert LockRecord.decode(json.dumps(fields).encode()).epoch == 1
    with pytest.raises(DamagedWorkspace):
        LockRecord.decode(json.dumps({**fields, field: value}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b" ", b"null", b"[]", b"{}", b'""', b"{", b"\xff\xfe", b"\x00" * 70, b'{"s":"h","e":1,"t":""}',
        b'{"s":"f","e":1}', b'{"s":"f","t":""}', b'{"state":"held"}', b"{" * 100_000, b'{"a":' * 100_000,
        b'{"s":"f","e":' + b"9" * 5000 + b',"t":""}', b"<?xml version='1.0'?><Error/>",
    ],
)  # fmt: skip
def test_foreign_bytes_are_damage(data: bytes) -> None:
    """As are objects of other programs, and what is left of a broken write."""
    for kind in (LockRecord, Flag, Failure):
        with pytest.raises(DamagedWorkspace):
            kind.decode(data)


@quick
@given(held | st.builds(
    LockRecord, state=st.sampled_from([LockState.FREE, LockState.DEAD]), token=st.just(TOKEN),
    epoch=st.integers(0, 9_999_998), failures=st.integers(0, 9998), backoff=st.integers(0, 86_400),
), st.data())  # fmt: skip
def test_a_lock_that_is_cut_off_is_damage(lock: LockRecord, data: st.DataObject) -> None:
    """Half a lock is never read as another one (a whole one without bytes is olmOCR's)."""
    whole = lock.encode()
    with pytest.raises(DamagedWorkspace):
        LockRecord.decode(whole[: data.draw(st.integers(1, len(whole) - 1))])


@quick
@given(st.one_of(st.binary(max_size=80), st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.sampled_from(["held", "free"]),
    lambda inner: st.dictionaries(st.sampled_from(["state", "s", "e", "epoch", "token", "ttl", "t", "f"]), inner),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_nonsense_is_damage_and_nothing_else(data: bytes) -> None:
    """Whatever bytes a store holds, reading them ends in a record or in `DamagedWorkspace`."""
    for kind in (LockRecord, Flag, Failure):
        try:
            kind.decode(data)
        except DamagedWorkspace:
            continue


def test_deep_nonsense() -> None:
    """JSON that is nested beyond reason is damage, not a crash."""
    with pytest.raises(DamagedWorkspace):
        LockRecord.decode(b"[" * 200_000)


def test_a_failure_record_comes_back() -> None:
    """What went wrong is kept as it was told."""
    failure = Failure(
        token=TOKEN, epoch=3, attempt=2, owner="host:1:ab", at="2026", kind="ValueError", error="é\n", detail="x"
    )
    assert Failure.decode(failure.encode()) == failure


def circle() -> list[Any]:
    """A list that holds itself."""
    ring: list[Any] = []
    ring.append(ring)
    return ring


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "result",
    [{1, 2}, b"bytes", object(), math.nan, [math.inf], {(1, 2): 3}, "\ud800", 10**5000, circle(), nested(100_000)],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_is_no_json(result: Any) -> None:
    """The error says what to return instead."""
    with pytest.raises(HandlerError, match="return JSON"):
        Flag(token=TOKEN, epoch=1, result=result).encode()


def test_a_result_has_a_bound() -> None:
    """Large results belong into the store, and the error says so."""
    flag = Flag(token=TOKEN, epoch=1, result="x" * (RESULTS_LIMIT - 200))
    assert Flag.decode(flag.encode()) == flag
    with pytest.raises(HandlerError, match="return a reference"):
        Flag(token=TOKEN, epoch=1, result="x" * RESULTS_LIMIT).encode()


@pytest.mark.parametrize(
    "secret",
    [
        "https://b.example/k?X-Amz-Credential=AKIDEXAMPLE&X-Amz-Signature={}",
        "aws_secret_access_key = {}",
        "AWS_SESSION_TOKEN={}",
        "password: {}",
        "postgres://user:{}@host/db",
        "postgres://user:{}@more@host/db",
        "https://:{}@host",
        "Authorization: Bearer {}",
        "Authorization: Basic {}",
        "authorization: {}",
        "'Authorization': 'Bearer {}'",
        '{{"authorization": "{}"}}',
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/2026/s3, SignedHeaders=host, Signature={}",
        "X-Amz-Security-Token: {}",
        "https://b.example/k?x-amz-security-token={}&X-Amz-Expires=9",
        "{{'SecretAccessKey': '{}', 'SessionToken': '{}'}}",
        "AWS_SECRET_ACCESS_KEY='{}'",
        "secret_key: {}",
        "mysqldump --password={}",
        "mysqldump --password {}",
    ],
)
def test_secrets_are_blotted_out(secret: str) -> None:
    """What looks like a credential reaches no record, neither in the line nor in the traceback."""
    error = ValueError("it failed: " + secret.format("hunter2hunter2", "hunter2hunter2"))

    assert "hunter2" not in "".join(describe(error))
    assert "it failed" in describe(error)[1]


@pytest.mark.parametrize(
    "line",
    [
        "http://127.0.0.1:8333/bucket/key: no answer",
        "http://host:8333/mail/a@b.pdf: no answer",
        "the request signature does not match; check your credentials and authorization",
        "s3://bucket/a: b@c",
        "KeyError: 'token'",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    """A blotted address or reason helps nobody."""
    assert describe(ValueError(line))[1] == line
    assert describe(line) == ("error", line, "")


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.text(max_size=200) | st.lists(st.sampled_from(
    ["://", ":", "@", "password=", "Authorization: ", "\ud800", "'", " ", "x" * 50]), max_size=30
).map("".join))  # fmt: skip
def test_anything_can_be_described(message: str) -> None:
    """Whatever an error says, what is kept of it can be stored."""
    for error in (message, ValueError(message), HandlerError(message, detail=message)):
        kind, line, detail = describe(error)
        failure = Failure(token=TOKEN, epoch=1, attempt=1, owner="", at="", kind=kind, error=line, detail=detail)
        assert Failure.decode(failure.encode()) == failure


class Unspeakable(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_an_error_that_fails_to_tell() -> None:
    """A broken exception of a handler must not break the worker; nor do odd notes."""
    assert describe(Unspeakable())[:2] == ("Unspeakable", "Unspeakable")
    odd = ValueError("x")
    odd.__notes__ = [1]  # type: ignore[list-item]
    assert describe(odd)[1] == "x · 1"
    assert describe(KeyError())[:2] == ("KeyError", "KeyError")


def test_groups_of_errors() -> None:
    """One error in groups is told plainly; several are all in the detail, their secrets blotted out."""
    one = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("x")])])
    assert describe(one)[:2] == ("ValueError", "x")

    kind, line, detail = describe(ExceptionGroup("two", [ValueError("password=hunter2"), KeyError("k")]))
    assert (kind, line) == ("ExceptionGroup", "two (2 sub-exceptions)")
    assert "password=***" in detail
    assert "KeyError: 'k'" in detail


def test_the_cause_is_in_the_detail() -> None:
    """What led to an error is what a person needs, and it is cleaned as well."""
    error = ValueError("outer")
    error.__cause__ = OSError("password: hunter2")
    detail = describe(error)[2]
    assert "OSError: password: ***" in detail
    assert detail.endswith("ValueError: outer\n")


def test_the_end_of_a_detail_is_kept() -> None:
    """There is what went wrong."""
    detail = describe(HandlerError("x", detail="a" * DETAIL_LIMIT + "the end"))[2]
    assert len(detail) == DETAIL_LIMIT
    assert detail.endswith("athe end")


def test_times_are_utc_and_iso_8601() -> None:
    """The same wherever they were written."""
    assert timestamp(1_790_000_000.1234) == "2026-09-21T14:13:20.123+00:00"


def test_a_description_is_bounded_and_encodes() -> None:
    """A huge message, and one with half a character, still make a record."""
    kind, line, detail = describe(ValueError("x" * 100_000 + "\udcff"))
    assert (kind, len(line), len(detail)) == ("ValueError", 1000, DETAIL_LIMIT)
    describe(ValueError("\udcff"))[1].encode("utf-8")


def test_what_a_command_told() -> None:
    """A handler's error may bring its own detail; notes are told in the line."""
    error = HandlerError("wc: exit code 1", detail="wc: no such file")
    error.add_note("path: /a")
    assert describe(error) == ("HandlerError", "wc: exit code 1 · path: /a", "wc: no such file")
