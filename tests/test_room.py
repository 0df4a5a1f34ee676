"""Where to claim next: whatever is free is in one run, and one run is chosen."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from s3queue._room import Run, choose, runs_of

PLACES = st.lists(st.integers(0, 60), unique=True, max_size=60)


@given(free=PLACES, walls=PLACES, walled=st.booleans())
def test_runs_are_what_walls_leave(free: list[int], walls: list[int], *, walled: bool) -> None:
    """Each free place is in one run, none has a wall inside, and a run is walled if a wall comes just before it."""
    free, walls = sorted(set(free) - set(walls)), sorted(walls)

    runs = runs_of(free, walls, walled=walled)

    assert [place for run in runs for place in run.places] == free
    for i, run in enumerate(runs):
        assert not [wall for wall in walls if run.places[0] < wall < run.places[-1]]
        before = runs[i - 1].places[-1] if i else -1
        assert run.walled == (any(before < wall < run.places[0] for wall in walls) or (walled and not i))


@given(free=PLACES, walls=PLACES, place=st.integers(0, 60), seed=st.integers(0, 9), walled=st.booleans())
def test_something_is_chosen_of_one_run(
    free: list[int], walls: list[int], place: int, seed: int, *, walled: bool
) -> None:
    """Nobody idles while something is free; nothing is offered twice."""
    free, walls = sorted(set(free) - set(walls)), sorted(walls)
    runs = runs_of(free, walls, walled=walled)

    places = choose(runs, place, Random(seed))

    assert bool(places) == bool(free)
    assert len(set(places)) == len(places)
    assert not places or any(set(places) <= set(run.places) for run in runs)


def test_who_walks_here_goes_on() -> None:
    """Though other runs be longer."""
    runs = [Run(range(10, 20), walled=True), Run(range(30, 900), walled=True)]

    assert choose(runs, 11, Random(0)) == list(range(11, 20))


def test_who_comes_new_begins_away_from_the_wall() -> None:
    """A quarter of the run, at least, is left to the wall's owner; of a short one, what he comes to last is first."""
    for seed in range(50):
        assert 125 <= choose([Run(range(100, 200), walled=True)], 0, Random(seed))[0] < 175
    assert choose([Run(range(5), walled=True)], 0, Random(0)) == [4, 3, 2, 1, 0]
    assert choose([Run(range(100, 200), walled=False)], 0, Random(0)) == list(range(100, 200))
