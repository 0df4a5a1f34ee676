"""The scopes, explored; and the explorer itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interleavings._choices import parse, spell
from tests.interleavings._explorer import explore, replay, sample
from tests.interleavings._scopes import SCOPES

#: Schedules that broke a promise once: the scope, the schedule, and what it showed.
FOUND = {
    "a completion whose lock was cleared away by its finder": (
        "hands",
        (
            "w1.0 w1.1 w1.2 w1.3 w1.4 w1.5 w2.0 w2.1 w2.2 w2.3 w1.6D + w2.4 + w2.5 + w2.6 + w2.7 w2.8 + w2.9"
            " w2.10 w2.11 w2.12 w2.13 +"
        ),
    ),
    "the same, while its owner looked": (
        "hands",
        (
            "w1.0 w1.2 w1.1 w1.3 w1.4 w1.5 w1.6d w2.0 w2.1 w2.2 w2.3 + w2.4 + w2.5 + w2.6 + w2.7 w2.8 + w2.9"
            " w2.10 w2.11 w2.12 w2.13D + w2.13^ w1.7 w2.14 w2.15 w2.16 w2.17 w1.6^ w2.18 w2.19"
        ),
    ),
    "a renewal that counted from its last sending": (
        "late",
        "w1.0 w1.1 w2.0 w2.1 w1.2D w2.2 + w1.2^ w1.3 w1.4 w1.5 w1.6z + w2.3 w2.4 w2.5 w2.6 w1.6^ w2.7 w2.8 w2.9",
    ),
    "a second run that did not look at the index": (
        "growth",
        "p1.0 w1.0 w1.1 w1.2 w1.3 w1.4 w1.5 w1.6 w1.7 p1.1 + +",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_schedules_that_broke_a_promise_once(name: str) -> None:
    """They do not any more."""
    scope, schedule = FOUND[name]

    outcome = replay(SCOPES[scope], parse(schedule))

    assert outcome.violation is None, "\n".join(outcome.trace)


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
