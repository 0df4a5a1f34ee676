"""The settings of a queue: plain data, checked when made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from s3queue._errors import ConfigurationError

__all__ = ["QueueOptions"]

#: No setting is larger (nor is NaN less); a lock with a longer time to live would not be read again.
_MOST = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """How one process takes part in a workspace. All times are seconds. Raises `ConfigurationError` on nonsense.

    Processes that share a workspace may differ in everything but `margin` and `completion_grace`.
    """

    lease_ttl: float = 120.0
    """How long a lease lives without a renewal. A dead machine's groups are taken over after this plus `margin`."""
    margin: float = 2.0
    """Slack for one-second timestamps and for the skew between a store's own nodes. An owner gives its lease up this
    much before `lease_ttl`; others wait this much after it."""
    completion_grace: float = 60.0
    """How long a lock outlives its group's completion. A claim from a listing younger than this needs no look at the
    done flag."""
    olmocr_lock_timeout: float = 1800.0
    """Age at which an empty lock, as olmOCR writes them, is taken over (olmOCR's own default)."""
    max_attempts: int = 3
    """Failed attempts after which a group (worked on path by path: a path) is dead."""
    max_crashes: int = 3
    """Crashes in a row after which what ran is dead: a path, or the group of a handler of whole groups. The first crash
    blames all that a group has left, which then runs one at a time, by name; only what runs at each further one is
    blamed again, and the last chance is given to it alone in its process. So preemptions bury nobody."""
    backoff: float = 10.0
    """Wait before the second attempt of a failed group; doubles with each further failure."""
    backoff_max: float = 600.0
    """The most that `backoff` grows to."""
    claim_ahead: int = 8
    """Groups leased ahead of the workers, so that a free worker finds its next group in memory. They are renewed like
    others and handed back on drain."""
    claim_concurrency: int = 8
    """Requests that look for work at the same time."""
    checkpoint_every: float = 5.0
    """How long a finished path of an unfinished group may be known to this process alone. A crash loses no more."""
    picture_ttl: float = 10.0
    """How old a listing may be before claims made from it are probably someone else's already."""
    poll_min: float = 1.0
    """Shortest wait between two looks at groups that others hold; it doubles while nothing changes."""
    poll_max: float = 15.0
    """The most that this wait grows to."""
    index_refresh: float = 30.0
    """How often a running process asks whether the index has grown."""
    request_timeout: float = 10.0
    """Deadline of one request to the store, its retries not counted."""
    retry_for: float = 30.0
    """Total time within which a failing request is tried again."""
    connections: int = 64
    """Connections to the store, and so requests in flight."""
    block_warning: float = 2.0
    """A loop that has not run for this long is reported, with the handler's name; 0 turns the watch off."""
    unsafe_store: bool = False
    """Run although the start-up check says that the store cannot carry the protocol. Groups may then run twice."""
    check_store: bool = True
    """Prove on scratch keys, once per workspace and process, that the store can carry the protocol."""

    def __post_init__(self) -> None:
        self._check_each()
        self._check_together()

    def _check_each(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(f.default, bool):
                if not isinstance(value, bool):
                    raise ConfigurationError(f"QueueOptions.{f.name} must be True or False, not {value!r}")
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
                raise ConfigurationError(f"QueueOptions.{f.name} must be a number, 0 or more, not {value!r}")
        for name in ("max_attempts", "max_crashes", "claim_concurrency", "connections"):
            if int(getattr(self, name)) != getattr(self, name) or getattr(self, name) < 1:
                raise ConfigurationError(f"QueueOptions.{name} must be a whole number, 1 or more")
        for name in ("request_timeout", "retry_for", "poll_min", "picture_ttl", "index_refresh", "checkpoint_every"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"QueueOptions.{name} must be more than 0")

    def _check_together(self) -> None:
        if self.lease_ttl < 2 * self.margin + 1:
            raise ConfigurationError(
                f"QueueOptions.lease_ttl ({self.lease_ttl:g}) must be at least 2 * margin + 1 ({2 * self.margin + 1:g})"
            )
        if self.max_crashes < 2:
            raise ConfigurationError(
                "QueueOptions.max_crashes must be 2 or more: the first crash says nothing of whose"
            )
        # A released lock tells its count and its wait in a body of less than 64 bytes.
        if self.max_attempts > 1000 or self.backoff_max > 86_400:
            raise ConfigurationError("QueueOptions.max_attempts is at most 1000, and backoff_max 86400 (a day)")
        if self.poll_max < self.poll_min or self.backoff_max < self.backoff:
            raise ConfigurationError("poll_max and backoff_max must not be less than poll_min and backoff")
