"""What to do next to find work: a pure plan over what is known of every group. No I/O, no clock, no awaiting.

The groups in the order of their names are a ring. `Plan.next_step` says what to do; whoever does it tells the outcome
with one of the other methods. A group is, as far as this process knows:

* OPEN: not known to be anything else; a *candidate* if a listing younger than `picture_ttl` showed it free;
* HELD: somebody else's lock was seen, live or released; it is worth a look at `ready` (our monotonic clock);
* DEAD: its lock says so; a lock that changes (someone retried it) makes it HELD again;
* MINE: claimed, or being claimed, by this process;
* DONE.

Work comes first from locks that are ready to be taken over, then from candidates, then from a listing of the next
stretch of the ring that has an OPEN group, and at last from polling the locks of what is HELD.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from s3queue import _lease_rules as rules
from s3queue._index import Index
from s3queue._options import QueueOptions
from s3queue._room import choose, runs_of
from s3queue._runtime import Random
from s3queue.stores._port import Listed, Version

__all__ = ["Claim", "Finished", "ListStretch", "Plan", "PollLocks", "Probe", "RefreshIndex", "Step", "TakeOver", "Wait"]

OPEN, HELD, DEAD, MINE, DONE = range(5)

#: A LIST costs as much as so many HEADs.
PROBES_A_LISTING = 12
#: At most so many groups that others hold are asked after at each poll, by a HEAD each; more vanished locks than this
#: are looked up by listing their stretch.
PROBES_MOST = 24
#: So many held groups within so many places of the ring (a page of locks and flags covers about as many) are asked
#: after by listing their stretch.
CROWD, STRETCH = 8, 800
#: A picture offers so many groups, and twice as many as the one before while nobody else is about.
CANDIDATES_LEAST, CANDIDATES_MOST = 32, 512
#: So much of `completion_grace` a listing of flags is good for; meanwhile its stretch is looked at by its locks alone.
FLAGS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ListStretch:
    """List flags and locks, or one of them, from after the group named `after` ("" for the ring's start); then call
    `saw_stretch`."""

    after: str
    flags: bool = True
    locks: bool = True


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim this group, which the picture number `picture` showed free; tell `collided` if it is not.

    Its flag was missing in a listing that began at `listed` (our monotonic clock)."""

    group: str
    listed: float
    picture: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Read this group's lock and take it over if it may be."""

    group: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask whether this group, which somebody held when we looked last, is done; then call `probed`."""

    group: str


@dataclass(frozen=True, slots=True)
class PollLocks:
    """List all locks; then call `saw_locks`."""


@dataclass(frozen=True, slots=True)
class RefreshIndex:
    """Ask whether the index has changed; then call `grow` (if so) and `index_checked`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is claimable before `until` (our monotonic clock), unless something is told before."""

    until: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Every group is done or dead, as far as is known."""


Step = ListStretch | Claim | TakeOver | Probe | PollLocks | RefreshIndex | Wait | Finished


@dataclass(slots=True)
class Seen:
    """What is known of a lock that is not ours."""

    version: Version | None
    #: When it is worth a look.
    ready: float


@dataclass(slots=True)
class Plan:
    """See the module's text."""

    options: QueueOptions
    rng: Random
    index: Index = field(default_factory=lambda: Index(b""))
    #: Never `Finished`: the index may grow, and somebody may want what is dead tried again.
    forever: bool = False
    _state: bytearray = field(default_factory=bytearray)
    _cursor: int = 0
    #: Places of groups to claim.
    _candidates: deque[int] = field(default_factory=deque)
    #: The last picture: its number, when it was taken, and how many groups the next one may offer.
    _picture: int = 0
    _pictured: float = -math.inf
    _offer: int = CANDIDATES_LEAST
    #: The places of the ring whose flags were listed last, from the first up to, not with, the second; and when.
    _flagged: tuple[int, int, float] = (0, 0, -math.inf)
    #: The ring is so small that a page shows all of it, as far as we have seen.
    _fits: bool = False
    _takeable: deque[str] = field(default_factory=deque)
    #: Groups that are HELD, and may be done: their lock has vanished, or it outlives its flag.
    _probes: deque[str] = field(default_factory=deque)
    #: Where many of those are close together: the groups after which to list.
    _crowds: deque[str] = field(default_factory=deque)
    #: Groups that are HELD, whose lock has vanished, and of which no probe has told what they are.
    _unasked: list[str] = field(default_factory=list)
    _locks: dict[str, Seen] = field(default_factory=dict)
    #: (when, group) of what this process handed back itself: nobody renews those, so no listing is needed to tell.
    _handed_back: list[tuple[float, str]] = field(default_factory=list)
    _counts: list[int] = field(default_factory=lambda: [0] * 5)
    _polled: float = -math.inf
    _next_poll: float = -math.inf
    _poll_wait: float = 0.0
    #: The least that it may be, after a look that took so many requests.
    _poll_least: float = 0.0
    _index_checked: float = -math.inf
    #: A listing, poll or index request is under way; its outcome may change every answer.
    _looking: bool = False

    def grow(self, index: Index) -> None:
        """Plan for this index from now on. What is known of its groups stays known."""
        old, before = self.index, self._state
        self.index = index
        self._state = bytearray(len(index))
        for i, state in enumerate(before):
            place = index.find(old.name(i)) if state != OPEN else None
            if place is not None:
                self._state[place] = state
        self._counts = [self._state.count(state) for state in range(5)]
        self._flagged = (0, 0, -math.inf)
        self._fits = len(index) <= STRETCH
        self._go_elsewhere()

    def next_step(self, now: float) -> Step:
        """What to do now. A step that looks (lists, polls, refreshes) is given out once until its outcome is told."""
        refresh = self._index_checked + self.options.index_refresh
        if now >= refresh and not self._looking:
            return self._look(RefreshIndex())
        work = self._next_work(now)
        if work is not None:
            return work
        if self._looking:
            return Wait(math.inf)
        start = self._next_open()
        if start is not None:
            self._cursor = start
            return self._look(self._stretch_from(start, now))
        return self._idle(now, refresh)

    def _next_work(self, now: float) -> TakeOver | Probe | Claim | None:
        while self._handed_back and self._handed_back[0][0] <= now:
            self._takeable.append(heappop(self._handed_back)[1])
        while self._takeable:
            group = self._takeable.popleft()
            seen = self._locks.get(group)
            if seen is not None and seen.ready <= now and self._get(group) == HELD:
                return TakeOver(self._mine(group))
        while self._probes:
            group = self._probes.popleft()
            if self._get(group) == HELD:
                return Probe(group)
        place = self._next_candidate(now)
        if place is None:
            return None
        self._put(place, MINE)
        return Claim(self.index.name(place), self._flagged[2], self._picture)

    def _idle(self, now: float, refresh: float) -> Step:
        if self._crowds:
            return self._look(ListStretch(self._crowds.popleft(), locks=False))
        if not self.count(HELD) and not (self.forever and self.count(DEAD)):
            if now > self._index_checked + self.options.poll_min:
                return self._look(RefreshIndex())  # it may have grown: look before saying that all is done
            return Wait(refresh) if self.count(MINE) or self.forever else Finished()
        # A lock that gets ready before the next regular poll is looked for in time, but never faster than is paid for.
        ready = min((seen.ready for seen in self._locks.values()), default=math.inf)
        due = max(min(self._next_poll, ready), self._polled + self._poll_least)
        if now >= due:
            return self._look(PollLocks())
        return Wait(min([due, refresh, *(when for when, _ in self._handed_back[:1])]))

    def _look(self, step: ListStretch | PollLocks | RefreshIndex) -> Step:
        self._looking = True
        return step

    def gave_up_looking(self) -> None:
        """A look failed: it may be given out again."""
        self._looking = False

    def index_checked(self, now: float) -> None:
        """The index is as `grow` was told last."""
        self._looking = False
        self._index_checked = now

    def saw_stretch(
        self, step: ListStretch, *, done: Iterable[str], locks: Mapping[str, Listed], end: str, date: float, now: float
    ) -> None:
        """What the stretch after `step.after` up to and with `end` ("" for the ring's end) looked like.

        `done` names the groups with flags, `locks` those with locks (with what the listing says of them); groups of
        neither are free. `now` is when the listing began.
        """
        self._looking = False
        first = self._position_after(step.after) if step.after else 0
        last = self._position_after(end) if end else len(self.index)
        listed = self._placed(locks)
        walls = self._walls(listed, date)
        for group in done:
            self.done(group)
        for place, group, lock in listed:
            self._saw_lock(place, group, lock, date, now)
        if not step.locks:
            return
        if step.flags:
            self._flagged = (first, last, now)
        self._fits &= last == len(self.index)
        self._offer_some(first, min(last, self._flagged[1]), walls)
        self._picture += 1
        self._pictured = now

    def _stretch_from(self, start: int, now: float) -> ListStretch:
        """What to list to see the groups from this place on."""
        first, last, listed = self._flagged
        known = first <= start < last and now - listed < FLAGS_SHARE * self.options.completion_grace
        if self._fits:
            start = 0
        return ListStretch(self.index.name(start - 1) if start else "", flags=not known)

    def _placed(self, locks: Mapping[str, Listed]) -> list[tuple[int, str, Listed]]:
        """(place, group, lock) of each lock on a group of the index."""
        places = ((self.index.find(group), group, lock) for group, lock in locks.items())
        return [(place, group, lock) for place, group, lock in places if place is not None]

    def _walls(self, listed: list[tuple[int, str, Listed]], date: float) -> list[int]:
        """The places where somebody else has just claimed, in order."""
        fresh = (place for place, _, lock in listed if date - lock.modified < self.options.picture_ttl)
        return sorted(place for place in fresh if self._state[place] not in (MINE, DONE))

    def _offer_some(self, first: int, last: int, walls: list[int]) -> None:
        """Offer some of what is open from place `first` up to, not with, `last`; the next picture offers more."""
        free = self._free(first, last)
        if walls:
            self._offer = CANDIDATES_LEAST
            walled = bool(free) and free[0] > 0 and self._state[free[0] - 1] == HELD
            places = choose(runs_of(free, walls, walled=walled), self._cursor, self.rng)
            # Whoever comes to this run meanwhile leaves us its first quarter, or more.
            places = places[: max(CANDIDATES_LEAST, len(places) // 4)]
        else:
            places = [*(i for i in free if i >= self._cursor), *(i for i in free if i < self._cursor)][: self._offer]
            self._offer = min(2 * self._offer, CANDIDATES_MOST)
        self._candidates = deque(places)
        self._cursor = places[-1] + 1 if places else last

    def _free(self, first: int, last: int) -> list[int]:
        """The open places from `first` up to, not with, `last`; no more than make a difference."""
        free: list[int] = []
        i = first - 1
        while len(free) < 2 * CANDIDATES_MOST and (i := self._state.find(OPEN, i + 1, last)) >= 0:
            free.append(i)
        return free

    def _position_after(self, group: str) -> int:
        i = self.index.position(group)
        return i + 1 if i < len(self.index) and self.index.name(i) == group else i

    def saw_locks(self, locks: Mapping[str, Listed], *, date: float, now: float) -> None:
        """What a listing of all locks, begun at `now`, looked like."""
        self._looking = False
        changed = False
        for place, group, lock in self._placed(locks):
            changed |= self._saw_lock(place, group, lock, date, now)
        vanished = [group for group in self._locks if group not in locks and self._get(group) in (HELD, DEAD)]
        # A probe may have failed, or not have had its turn: those groups are still to be asked after.
        gone = [group for group in self._unasked if group not in self._locks and self._get(group) == HELD] + vanished
        for group in vanished:
            del self._locks[group]
        for group in gone:
            self._set(group, HELD if len(gone) <= PROBES_MOST else OPEN)
        self._unasked = gone if len(gone) <= PROBES_MOST else []
        self._probes = deque(self._unasked)
        self._ask_after([group for group in self._locks if self._get(group) == HELD])
        self._poll_least = self._price(len(locks))
        quiet = not changed and not vanished
        longer = min(self.options.poll_max, 2 * max(self._poll_least, self._poll_wait))
        self._poll_wait = longer if quiet else self._poll_least
        self._polled = now
        self._next_poll = now + self._poll_wait * (0.75 + 0.5 * self.rng.random())
        # Others see the same locks get ready: a random order keeps us apart.
        self.rng.shuffle(self._takeable)

    def _price(self, locks: int) -> float:
        """Seconds to wait after this poll: a large workspace is looked at the more seldom."""
        listings = -(-locks // 1000) + len(self._crowds) + len(self._probes) / PROBES_A_LISTING
        return min(self.options.poll_max, self.options.poll_min * max(1, listings))

    def _ask_after(self, held: list[str]) -> None:
        """Groups whose locks are there may be done all the same: find out by listings where they are many."""
        self._crowds.clear()
        lonely: list[str] = []
        places = sorted(self.index.position(group) for group in held)
        i = 0
        while i < len(places):
            j = bisect_right(places, places[i] + STRETCH)
            if j - i >= CROWD:
                self._crowds.append(self.index.name(places[i] - 1) if places[i] else "")
            else:
                lonely += [self.index.name(place) for place in places[i:j]]
            i = j
        self._probes.extend(self.rng.sample(lonely, min(len(lonely), PROBES_MOST - len(self._probes))))

    def _saw_lock(self, i: int, group: str, listed: Listed, date: float, now: float) -> bool:
        """Whether this says something new of the group at place `i`."""
        if self._state[i] in (MINE, DONE):
            return False
        seen = self._locks.get(group)
        new = seen is None or seen.version != listed.version
        if seen is None or new:
            seen = Seen(listed.version, now + rules.listed_wait(listed.size, date - listed.modified, self.options))
            self._locks[group] = seen
            self._put(i, HELD)
        if self._state[i] == HELD and seen.ready <= now:
            self._takeable.append(group)
        return new

    def held(self, group: str, version: Version | None, ready: float) -> None:
        """A lock that is not ours is on the group; worth a look at `ready`."""
        self._locks[group] = Seen(version, ready)
        self._set(group, HELD)

    def handed_back(self, group: str, version: Version | None, ready: float) -> None:
        """This process left the group's lock, in this version, released; anybody may take it over at `ready`."""
        self.held(group, version, ready)
        heappush(self._handed_back, (ready, group))

    def probed(self, group: str, *, is_done: bool) -> None:
        """Whether a group that was HELD is done; if not, and its lock had vanished, it is free."""
        if is_done:
            self.done(group)
            self._next_poll = self._polled + self._poll_least  # things move: look again soon
        elif self._get(group) == HELD and group not in self._locks:
            self._set(group, OPEN)

    def done(self, group: str) -> None:
        """The group is completed."""
        self._locks.pop(group, None)
        self._set(group, DONE)

    def dead(self, group: str, version: Version | None) -> None:
        """The group's lock, in this version, says that it is dead."""
        self._locks[group] = Seen(version, math.inf)
        self._set(group, DEAD)

    def is_done(self, group: str) -> bool:
        """Whether the group is known to be completed."""
        return self._get(group) == DONE

    def collided(self, claim: Claim) -> None:
        """This candidate was somebody else's already: its picture is stale, and someone walks here. Go elsewhere."""
        if claim.picture == self._picture:
            self._go_elsewhere()

    def _go_elsewhere(self) -> None:
        self._candidates.clear()
        self._offer = CANDIDATES_LEAST
        self._cursor = self.rng.randrange(len(self.index)) if len(self.index) else 0

    def count(self, state: int) -> int:
        """How many groups are OPEN, HELD, DEAD, MINE or DONE."""
        return self._counts[state]

    def _next_candidate(self, now: float) -> int | None:
        if self._candidates and now > self._pictured + self.options.picture_ttl:
            self._cursor = self._candidates[0]
            self._candidates.clear()
        while self._candidates:
            place = self._candidates.popleft()
            if self._state[place] == OPEN:
                return place
        return None

    def _next_open(self) -> int | None:
        i = self._state.find(OPEN, self._cursor)
        if i < 0:
            i = self._state.find(OPEN, 0, self._cursor)
        return i if i >= 0 else None

    def _mine(self, group: str) -> str:
        self._locks.pop(group, None)
        self._set(group, MINE)
        return group

    def _get(self, group: str) -> int | None:
        i = self.index.find(group)
        return None if i is None else self._state[i]

    def _set(self, group: str, state: int) -> None:
        i = self.index.find(group)
        if i is not None:
            self._put(i, state)

    def _put(self, i: int, state: int) -> None:
        self._counts[self._state[i]] -= 1
        self._counts[state] += 1
        self._state[i] = state
