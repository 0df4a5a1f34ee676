"""The auditor of the ledgers can fail."""

from __future__ import annotations

from dataclasses import replace

from s3queue._records import Flag
from tests.chaos._audit import Facts, Run, broken

GROUP = "ab" * 20
#: Stopped in its second step, overtaken meanwhile; it ends that step, and is cancelled.
EARLIER = Run(GROUP, 1, 10, began=0.0, steps=[1.0, 30.0], ending="cancelled", ended=30.1)
LATER = Run(GROUP, 2, 11, began=20.0, steps=[21.0], ending="returned", ended=22.0)
FLAG = Flag(token="t", epoch=2, result=[11, 2, "a"])
PAUSE = (10, 1.5, 29.0)


def judge(
    earlier: Run = EARLIER,
    *,
    flag: Flag | None = FLAG,
    pauses: tuple[tuple[int, float, float], ...] = (PAUSE,),
    told: tuple[tuple[str, int, int], ...] = ((GROUP, 2, 11),),
    repeated: tuple[str, ...] = (),
) -> str:
    facts = Facts([earlier, LATER], list(told), list(repeated))
    return "; ".join(broken(facts, {} if flag is None else {GROUP: flag}, {GROUP: ["a"]}, pauses))


def test_what_may_happen() -> None:
    """A process that stood still ends the step it was stopped in; one that was killed just ends."""
    assert not judge()
    assert not judge(Run(GROUP, 1, 10, began=0.0, steps=[1.0]), pauses=())


def test_runs_that_overlap() -> None:
    """Nobody goes on beside its successor, unless it was stopped; and then for no second step."""
    assert "ran on for 10.10 s" in judge(pauses=())
    assert "ran on" in judge(pauses=((11, 1.5, 29.0),))
    assert "took 2 steps" in judge(replace(EARLIER, steps=[1.0, 30.0, 30.2]))
    assert "no end" in judge(replace(EARLIER, ending=""))


def test_completions_that_are_none() -> None:
    """By a run that did not end, with a result of another run, told twice, told to another, or none at all."""
    assert "is not done" in judge(flag=None)
    assert "no run that came to its end" in judge(flag=replace(FLAG, epoch=1))
    assert "another result" in judge(flag=replace(FLAG, result=[10, 1, "a"]))
    assert "was told 2 times" in judge(told=((GROUP, 2, 11), (GROUP, 2, 11)))
    assert "was told 1 times" in judge(told=((GROUP, 2, 10),))


def test_a_lease_that_ran_twice() -> None:
    """Each epoch of a group runs once."""
    assert "ran twice" in judge(repeated=("it",))
