"""The names of a workspace's objects: each built and parsed to the same, and nothing else taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import _keys as keys

GROUP = "0123456789abcdef0123456789abcdef01234567"
groups = st.text("0123456789abcdef", min_size=40, max_size=40)
quick = settings(derandomize=True, deadline=None, max_examples=100)
PARSERS = (keys.parse_lock, keys.parse_flag, keys.parse_failure, keys.parse_piece)


def test_the_layout_is_olmocrs() -> None:
    """Its index, its locks, its flags; what is ours lies beside them."""
    assert keys.INDEX == "work_index_list.csv.zstd"
    assert keys.lock(GROUP) == f"worker_locks/worker_{GROUP}.lock"
    assert keys.flag(GROUP) == f"done_flags/done_{GROUP}.flag"
    assert keys.failure(GROUP, 3) == f"failed_flags/failed_{GROUP}.3.json"
    assert keys.piece(GROUP, 3, 1) == f"results/result_{GROUP}.3.1.json"


@quick
@given(groups, st.integers(0, 2**53))
def test_a_key_is_parsed_to_what_it_was_built_from(group: str, epoch: int) -> None:
    """And by its own parser only."""
    lock, flag, failure = keys.lock(group), keys.flag(group), keys.failure(group, epoch)

    assert [parse(lock) for parse in PARSERS] == [group, None, None, None]
    assert [parse(flag) for parse in PARSERS] == [None, group, None, None]
    assert [parse(failure) for parse in PARSERS] == [None, None, (group, epoch), None]
    assert [parse(keys.piece(group, epoch, 7)) for parse in PARSERS] == [None, None, None, (group, epoch, 7)]


@quick
@given(groups, st.integers(0, 40))
def test_a_key_starts_with_its_prefixes(group: str, digits: int) -> None:
    """Listings below a prefix miss none."""
    assert keys.lock(group).startswith(keys.LOCKS)
    assert keys.flag(group).startswith(keys.FLAGS)
    assert keys.flag(group).startswith(keys.flag_prefix(group[:digits]))
    assert keys.failure(group, 1).startswith(keys.FAILURES)
    assert keys.failure(group, 1).startswith(keys.failure_prefix(group))
    assert keys.piece(group, 1, 0).startswith(keys.RESULTS)


@quick
@given(groups, groups)
def test_keys_are_in_the_order_of_their_groups(one: str, other: str) -> None:
    """So a listing after a group's key is a listing of the groups after it."""
    assert (keys.lock(one) < keys.lock(other)) == (keys.flag(one) < keys.flag(other)) == (one < other)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        keys.INDEX,
        keys.LOCKS,
        keys.FLAGS,
        keys.lock(GROUP.upper()),
        keys.lock(GROUP[:-1]),
        keys.lock(GROUP + "0"),
        keys.lock(GROUP) + "\n",
        keys.lock(GROUP) + ".tmp",
        "x" + keys.lock(GROUP),
        "/" + keys.flag(GROUP),
        keys.flag(GROUP) + "/",
        keys.flag("../" + GROUP[3:]),
        keys.flag(GROUP.replace("0", "٠")),
        keys.flag(GROUP).replace("flag", "lock"),
        f"failed_flags/failed_{GROUP}.json",
        f"failed_flags/failed_{GROUP}.01.json",
        f"failed_flags/failed_{GROUP}.-1.json",
        f"failed_flags/failed_{GROUP}.1٢.json",
        f"failed_flags/failed_{GROUP}.{10**18}.json",
        f"failed_flags/failed_{GROUP}x1xjson",
    ],
)
def test_other_peoples_objects_are_nobodys(key: str) -> None:
    """Only exactly our names are ours (B35)."""
    assert [parse(key) for parse in PARSERS] == [None] * 4


@quick
@given(st.text())
def test_any_text_is_parsed_without_an_error(key: str) -> None:
    """Keys come from stores, where anybody may have put anything."""
    assert [parse(key) for parse in PARSERS] == [None] * 4


def test_the_scratch_keys_are_apart() -> None:
    """What the start-up check writes is seen by no listing of ours."""
    places = (keys.INDEX, keys.LOCKS, keys.FLAGS, keys.FAILURES)

    assert not any(place.startswith(keys.SCRATCH) or keys.SCRATCH.startswith(place) for place in places)
