"""The auditor of the ledgers can fail."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos._audit import Completion, Facts, Run, broken

GROUP = "ab" * 20
#: Stopped in its second step, overtaken meanwhile; it ends that step, and is cancelled.
EARLIER = Run(GROUP, 1, "", 10, began=0.0, steps=[1.0, 30.0], ending="cancelled", ended=30.1)
LATER = Run(GROUP, 2, "", 11, began=20.0, steps=[21.0], ending="returned", ended=22.0)
DONE = Completion(epoch=2, results={"a": [11, 2, ""]})
PAUSE = (10, 1.5, 29.0)


def judge(
    earlier: Run = EARLIER,
    later: Run = LATER,
    *,
    done: Completion | None = DONE,
    pauses: tuple[tuple[int, float, float], ...] = (PAUSE,),
    told: tuple[tuple[str, int, int], ...] = ((GROUP, 2, 11),),
    repeated: tuple[str, ...] = (),
) -> str:
    facts = Facts([earlier, later], list(told), list(repeated))
    return "; ".join(broken(facts, {} if done is None else {GROUP: done}, {GROUP: ["a"]}, pauses))


def test_what_may_happen() -> None:
    """A process that stood still ends the step it was stopped in; one that was killed just ends."""
    assert not judge()
    assert not judge(Run(GROUP, 1, "", 10, began=0.0, steps=[1.0]), pauses=())


def test_runs_that_overlap() -> None:
    """Nobody goes on beside its successor, unless it was stopped; and then for no second step."""
    assert "ran on for 10.10 s" in judge(pauses=())
    assert "ran on" in judge(pauses=((11, 1.5, 29.0),))
    assert "took 2 steps" in judge(replace(EARLIER, steps=[1.0, 30.0, 30.2]))
    assert "no end" in judge(replace(EARLIER, ending=""))


def test_completions_that_are_none() -> None:
    """By a run that did not end, or of a later lease; with another run's result, or none; told twice, or to another."""
    assert "is not done" in judge(done=None)
    assert "no run returned" in judge(done=Completion(1, {"a": [10, 1, ""]}))
    assert "no run returned" in judge(done=Completion(1, {"a": [11, 2, ""]}))
    assert "no run returned" in judge(done=Completion(2, {"a": [10, 2, ""]}))
    assert "no run returned" in judge(done=Completion(2, {}))
    assert "was told 2 times" in judge(told=((GROUP, 2, 11), (GROUP, 2, 11)))
    assert "was told 1 times" in judge(told=((GROUP, 2, 10),))


def test_work_by_path() -> None:
    """A path done by an earlier lease keeps that one's result; siblings run at a time; leases do not overlap."""
    first = Run(GROUP, 1, "a", 10, began=0.0, steps=[1.0], ending="returned", ended=1.1)
    rest = Run(GROUP, 2, "b", 11, began=20.0, steps=[21.0], ending="returned", ended=22.0)
    done = Completion(2, {"a": [10, 1, "a"], "b": [11, 2, "b"]})
    facts = Facts([first, replace(first, path="b", steps=[1.0], ending="", ended=0.0), rest], [(GROUP, 2, 11)], [])

    assert not broken(facts, {GROUP: done}, {GROUP: ["a", "b"]}, ())
    facts.runs[1].steps.append(20.5)
    assert ["b at epoch 1" in wrong for wrong in broken(facts, {GROUP: done}, {GROUP: ["a", "b"]}, ())] == [True]
    done.results["a"] = [11, 2, "b"]
    assert "no run returned" in broken(facts, {GROUP: done}, {GROUP: ["a", "b"]}, ())[0]


def test_a_lease_that_ran_twice() -> None:
    """Each epoch of a group runs once."""
    assert "ran twice" in judge(repeated=("it",))
