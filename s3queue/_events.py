"""What happens, told as it happens: stable names with plain fields, to the log and to whoever observes.

An observer is a plain function of one `Event`. It runs on the event loop, so it must be quick; an exception in it is
logged and goes no further. `EVENTS` lists every name: names and fields stay as they are from version to version, new
ones may come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["EVENTS", "Event", "Events", "Observer", "together"]

logger = logging.getLogger("s3queue")


@dataclass(frozen=True, slots=True)
class EventKind:
    """What an event's name says, and the fields that it may have."""

    says: str
    fields: tuple[str, ...]


def _kind(says: str, *fields: str) -> EventKind:
    return EventKind(says, fields)


#: Every event, by its name. ``hash`` is a group's, ``epoch`` its fencing token, ``error`` one line.
EVENTS: Mapping[str, EventKind] = {
    # groups, as this process works on them
    "group.claimed": _kind("a group is ours; `done` of its paths were finished before", "hash", "epoch", "done"),
    "group.done": _kind("we completed a group", "hash", "epoch"),
    "group.failed": _kind(
        "our attempt at a group failed, `failures` in a row", "hash", "epoch", "failures", "error", "dead"
    ),
    "group.released": _kind("we handed a group back, unfinished", "hash", "epoch"),
    "group.unsettled": _kind("a completion was not acknowledged; it is tried again", "hash", "error"),
    "path.done": _kind("the handler finished a path", "hash", "path"),
    "path.failed": _kind("the handler failed on a path; `dead` if for good", "hash", "path", "error", "dead"),
    # leases
    "lease.renewed": _kind("a lease was extended for the `beat`-th time", "hash", "beat", "done"),
    "lease.not_renewed": _kind("the store refused a renewal; the lease lasts, and it is tried again", "hash", "error"),
    "lease.lost": _kind("a lease of ours is lost, and the work on it stopped", "hash", "epoch", "error"),
    "lease.taken_over": _kind("we took over a group whose owner let it expire", "hash", "epoch", "lost_owner"),
    "lease.broken": _kind("a person freed a lock that somebody held", "hash", "owner", "epoch"),
    "claim.conflict": _kind("somebody else claimed the group first", "hash"),
    "claim.unknown": _kind("the store did not say whether a claim was applied; it is let go", "hash"),
    "lock.left": _kind("a lock could not be released or deleted; it runs out, or is swept", "hash", "count", "error"),
    "lock.unreadable": _kind("a lock cannot be read, so it is neither ours nor expired", "hash", "error"),
    # what is kept with a group
    "progress.lost": _kind("what a lock says of the work inside cannot be used", "hash", "key", "error"),
    "progress.unsaved": _kind("finished paths could not be put on record yet", "hash", "error"),
    "failure.unrecorded": _kind("a failure record could not be written", "hash", "epoch", "error"),
    "group.revived": _kind("a person gave a failed group a clean slate", "hash"),
    "group.reset": _kind("a person has `count` finished groups run again", "count"),
    # the index, and this process's picture of the workspace
    "index.loaded": _kind("the index was read", "groups"),
    "index.grown": _kind("a populate added groups", "groups"),
    "index.conflict": _kind("another populate was first; ours starts over"),
    "queue.depth": _kind(
        "groups by state, as far as this process has looked; those not looked at count as open",
        "open", "held", "dead", "mine", "done",
    ),
    # a pool, and the processes of `--processes`
    "pool.mode": _kind("a pool is paused, running again, or draining", "mode"),
    "pool.resized": _kind("a pool has `workers` in place of `before`", "workers", "before"),
    "pool.stopping": _kind("a pool claims nothing more; what runs has its grace", "running", "groups"),
    "pool.winding_down": _kind("a pool starts nothing more, for want of time", "running", "groups"),
    "process.died": _kind("a process of ours died, and is started again", "process", "how", "restart_in"),
    # the store, and the event loop
    "store.request": _kind(
        "one try of a request ended after `seconds`: ok, or the error's class", "verb", "outcome", "seconds", "count"
    ),
    "store.retry": _kind("a request is sent again after `wait` seconds", "verb", "attempt", "wait", "error"),
    "store.silent": _kind("no request was answered for `seconds`; each is sent again for a while", "seconds", "error"),
    "store.throttled": _kind("the store asks for fewer requests: at most `window` at a time now", "verb", "window"),
    "store.trouble": _kind("the search for work pauses for `wait` seconds", "error", "wait"),
    "store.unsafe": _kind("the store cannot carry the protocol, and is used all the same", "store", "problem"),
    "store.scratch_left": _kind("the start-up check could not clean up", "prefix", "error"),
    "loop.blocked": _kind("something held the event loop up", "handler", "seconds", "where"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, such as ``group.claimed``; `fields` hold numbers and strings, never a secret."""

    name: str
    """What happened, by a name that does not change between versions."""
    fields: Mapping[str, Any]
    """Its particulars, such as ``hash`` and ``epoch``; times are seconds."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.fields.items())])


Observer = Callable[[Event], None]
"""What is told of each event: a quick, plain function. What it raises is logged, and goes no further."""


class Events:
    """Hands events to the `s3queue` log (with `action` and the fields in `extra`) and to an observer."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer

    def wanted(self, level: int = logging.DEBUG) -> bool:
        """Whether anybody would hear of an event."""
        return self._observer is not None or logger.isEnabledFor(level)

    def emit(self, name: str, /, level: int = logging.DEBUG, **fields: Any) -> None:
        """Say that `name` happened."""
        if not self.wanted(level):
            return
        event = Event(name, fields)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra={"action": name, "fields": fields})
        if self._observer is not None:
            _tell(self._observer, event)


def together(*observers: Observer) -> Observer:
    """One observer that tells each of these; what one does wrong does not keep an event from the others."""

    def tell(event: Event) -> None:
        for observer in observers:
            _tell(observer, event)

    return tell


def _tell(observer: Observer, event: Event) -> None:
    try:
        observer(event)
    except Exception:  # an observer's fault must not cost a lease
        logger.exception("the observer failed on %s", event.name)
