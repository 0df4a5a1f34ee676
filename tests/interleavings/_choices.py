"""What may happen next, as a schedule spells it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tests.interleavings._gate import Fate, Footprint

#: The clock goes on to whatever is due next; a delayed operation, or a process that stood still, goes on.
TICK, WAKE = "+", "^"

_TOKEN = re.compile(r"(\w+)\.(\d+)(\S?)")


@dataclass(frozen=True)
class Choice:
    """One thing that may happen: an operation meets a fate, or wakes, or the clock goes on."""

    process: str
    number: int
    what: str

    def __str__(self) -> str:
        if self == CLOCK:
            return TICK
        return f"{self.process}.{self.number}{'' if self.what == Fate.ANSWERED.value else self.what}"


CLOCK = Choice("", 0, TICK)


@dataclass(frozen=True)
class Option:
    """A choice, its price, and what it touches (None: everything)."""

    choice: Choice
    footprint: Footprint | None
    preemptions: int = 0
    faults: int = 0


def spell(choices: Iterable[Choice]) -> str:
    """One string for a schedule; `parse` is its inverse."""
    return " ".join(map(str, choices))


def parse(schedule: str) -> tuple[Choice, ...]:
    """The choices of a schedule. Raises `ValueError`."""
    return tuple(CLOCK if token == TICK else _parse(token) for token in schedule.split())


def _parse(token: str) -> Choice:
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ValueError(f"{token!r} is not a step of a schedule, such as w1.0 or w2.3~")
    return Choice(match[1], int(match[2]), match[3] or Fate.ANSWERED.value)
