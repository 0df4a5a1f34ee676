"""Locks, flags and failure records: exact round trips, sizes that tell, and untrusted bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import DamagedWorkspace, HandlerError
from s3queue import _keys as keys
from s3queue._lease_rules import failed, released
from s3queue._options import QueueOptions
from s3queue._records import DETAIL_LIMIT, Failure, Flag, LockRecord, LockState, describe, looks_released

TOKEN = "t" * 16
held = st.builds(
    LockRecord,
    state=st.just(LockState.HELD),
    token=st.text("abcXYZ-_09", min_size=16, max_size=16),
    epoch=st.integers(1, 2**40),
    failures=st.integers(0, 1000),
    ttl=st.floats(1, 1e6),
    owner=st.text(st.characters(codec="utf-8"), max_size=40),
    beat=st.integers(0, 10**6),
)
quick = settings(derandomize=True, deadline=None, max_examples=100)


@quick
@given(held)
def test_a_live_lease_comes_back_and_is_large(lock: LockRecord) -> None:
    """A live lease is never under 64 bytes, so that a listing tells it from a released one."""
    assert LockRecord.decode(lock.encode()) == lock
    assert not looks_released(len(lock.encode()))


@pytest.mark.parametrize("epoch", [0, 1, 99_999, 9_999_999])
@pytest.mark.parametrize("fails", [True, False])
def test_a_released_lease_is_small(epoch: int, fails: bool) -> None:
    """A released or dead lock is under 64 bytes, for any epoch, count and back-off that can be."""
    options = QueueOptions(max_attempts=1000, backoff=600, backoff_max=86_400)
    lock = LockRecord(state=LockState.HELD, token="x" * 16, epoch=epoch, failures=997, ttl=120.0)
    for _ in range(3):
        lock = (
            failed(lock, token=TOKEN, permanent=False, options=options)
            if fails
            else released(lock, token=TOKEN, wait=1e9)
        )
        assert looks_released(len(lock.encode()))
        assert LockRecord.decode(lock.encode()) == lock
        assert lock.epoch == epoch


def test_olmocrs_empty_bodies() -> None:
    """An empty lock has no owner, no ttl and epoch 0; an empty flag has no result."""
    lock, flag = LockRecord.decode(b""), Flag.decode(b"")
    assert (lock.state, lock.owner, lock.ttl, lock.epoch) == (LockState.HELD, "", None, 0)
    assert (flag.token, flag.result) == ("", None)


def test_unknown_fields_are_ignored() -> None:
    """A later version may add fields."""
    lock = LockRecord(state=LockState.HELD, token=TOKEN, epoch=1, ttl=9.0)
    fields = {**json.loads(lock.encode()), "v": 7, "progress": "AAAA", "new": {"a": [1]}}
    assert LockRecord.decode(json.dumps(fields).encode()) == lock


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


def test_a_result_that_is_no_json() -> None:
    """The error says what to return instead."""
    with pytest.raises(HandlerError, match="return JSON"):
        Flag(token=TOKEN, epoch=1, result={1, 2}).encode()


@pytest.mark.parametrize(
    "secret",
    [
        "https://b.example/k?X-Amz-Credential=AKIDEXAMPLE&X-Amz-Signature={}",
        "aws_secret_access_key = {}",
        "AWS_SESSION_TOKEN={}",
        "password: {}",
        "postgres://user:{}@host/db",
        "Authorization: Bearer {}",
    ],
)
def test_secrets_are_blotted_out(secret: str) -> None:
    """What looks like a credential reaches no record, neither in the line nor in the traceback."""
    error = ValueError("it failed: " + secret.format("hunter2hunter2"))

    assert "hunter2" not in "".join(describe(error))
    assert "it failed" in describe(error)[1]


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


def test_keys_and_their_parsers_are_inverse() -> None:
    """Each key is parsed back to what it was built from; foreign keys are nobody's (B35)."""
    group = "0123456789abcdef" * 2 + "01234567"
    assert keys.parse_lock(keys.lock(group)) == group
    assert keys.parse_flag(keys.flag(group)) == group
    assert keys.parse_failure(keys.failure(group, 12)) == (group, 12)
    assert keys.flag(group).startswith(keys.flag_prefix(group[0]))
    for foreign in ("done_flags/done_x.flag", keys.flag(group) + "x", keys.lock(group.upper()), "", keys.flag(group)):
        assert keys.parse_lock(foreign) is None
    assert keys.parse_failure(f"failed_flags/failed_{group}.01.json") is None
