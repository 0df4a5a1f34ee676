"""The scopes, explored; and the explorer itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interleavings._choices import parse, spell
from tests.interleavings._explorer import explore, replay, sample
from tests.interleavings._scopes import SCOPES


@pytest.mark.parametrize("name", SCOPES)
def test_no_schedule_breaks_a_promise(name: str, proof: Callable[[str], None]) -> None:
    """Every schedule of a small scope keeps every promise."""
    report = explore(SCOPES[name])

    proof(f"interleavings of {report}")
    assert report.broken is None, report.failure()
    assert report.exhausted


@pytest.mark.parametrize("name", SCOPES)
def test_no_random_schedule_breaks_a_promise(name: str, seeds: int) -> None:
    """With more preemptions and more faults at once, as far as chance gets."""
    report = sample(SCOPES[name], range(seeds))

    assert report.broken is None, report.failure()


def test_a_schedule_is_one_string_and_replays() -> None:
    """The same string makes the same run, to the last line of its trace."""
    first = replay(SCOPES["lease"], parse("w1.0~ w2.0 w1.1 w2.1"))

    again = replay(SCOPES["lease"], parse(spell(first.choices)))

    assert again == first
    assert "the answer is lost" in first.trace[0]
    assert "PreconditionFailed" in first.trace[1]
