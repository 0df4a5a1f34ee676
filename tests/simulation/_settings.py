"""What a fleet is like: everything follows from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from s3queue import QueueOptions


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One fleet."""

    seed: int
    options: QueueOptions
    #: Places for machines, workers on each, populates, paths that each of them adds, and how many make a group.
    machines: int
    workers: int
    populates: int
    paths: int
    per_group: int
    #: Whether handlers get paths or groups.
    per_path: bool
    #: Mean seconds of a handler's work; a few take longer than a lease lives.
    work: float
    #: The part of all requests that go wrong; and of those that are refused while the store is overloaded.
    faults: float
    throttled: float
    #: Seconds that a request and a listing take; by which the store's nodes disagree, and machines' wall clocks.
    latency: float
    list_latency: float
    node_skew: float
    wall_skew: float
    #: How many machines die, stand still for longer than a lease lives, or have their clocks set.
    kills: int
    pauses: int
    jumps: int
    #: What a person does, and how many workers of olmOCR take part.
    interventions: int
    strangers: int
    #: When whatever disturbs the fleet ends.
    calm: float

    @property
    def groups(self) -> int:
        return self.populates * -(-self.paths // self.per_group)

    @property
    def undisturbed(self) -> bool:
        """Whether nothing but the work happens."""
        return not (self.faults or self.throttled or self.kills or self.pauses or self.interventions or self.strangers)

    @property
    def time_to_end(self) -> float:
        """Seconds after the calm by which everything must be done or dead."""
        o = self.options
        foreign = 2 * (o.olmocr_lock_timeout + o.margin) if self.strangers else 0.0
        one = 8 * self.work + 3 * o.lease_ttl
        attempts = o.max_attempts * (o.backoff_max + one + o.poll_max)
        return 120.0 + foreign + attempts + 5 * self.work * self.populates * self.paths / (self.machines * self.workers)


#: (chance, machines, workers, paths of one populate): most fleets are small, so that there are many.
_SIZES = (
    (0.76, (2, 4), (1, 4), (10, 60)),
    (0.96, (4, 8), (4, 12), (60, 200)),
    (1.01, (8, 16), (12, 24), (400, 1500)),
)


def draw(seed: int) -> Settings:
    """The fleet of this seed."""
    rng = Random(seed)
    chance = rng.random()
    _, machines, workers, paths = next(size for size in _SIZES if chance < size[0])
    quiet = rng.random() < 0.15
    options = _options(rng)

    def some(most: int) -> int:
        return 0 if quiet else rng.choice([0, rng.randint(1, most)])

    return Settings(
        seed=seed,
        options=options,
        machines=rng.randint(*machines),
        workers=rng.randint(*workers),
        populates=rng.randint(1, 3),
        paths=rng.randint(*paths),
        per_group=rng.choice([1, 2, 5]),
        per_path=rng.random() < 0.3,
        work=rng.choice([0.5, 3.0, 8.0]),
        faults=0.0 if quiet else rng.choice([0.0, 0.02, 0.1]),
        throttled=0.0 if quiet else rng.choice([0.0, 0.0, 0.5]),
        latency=rng.choice([0.01, 0.05, 0.2]),
        list_latency=rng.choice([0.05, 1.0]),
        node_skew=rng.choice([0.0, 0.7]),
        wall_skew=rng.choice([0.0, 5.0, 3600.0]),
        kills=some(6),
        pauses=some(4),
        jumps=rng.choice([0, 5]),
        interventions=some(6),
        strangers=some(2),
        calm=rng.uniform(30.0, 240.0),
    )


def _options(rng: Random) -> QueueOptions:
    ttl = rng.choice([8.0, 20.0, 45.5])
    poll = rng.choice([0.5, 2.0])
    backoff = rng.choice([1.0, 4.0])
    return QueueOptions(
        lease_ttl=ttl,
        margin=2.0,
        olmocr_lock_timeout=90.0,
        max_attempts=rng.choice([2, 4, 8]),
        max_crashes=rng.choice([2, 3, 5]),
        backoff=backoff,
        backoff_max=rng.choice([1, 4]) * backoff,
        claim_ahead=rng.choice([0, 2, 8]),
        claim_concurrency=rng.choice([1, 3, 8]),
        checkpoint_every=rng.choice([1.0, 5.0]),
        picture_ttl=rng.choice([2.0, 10.0]),
        poll_min=poll,
        poll_max=rng.choice([1, 5]) * poll,
        index_refresh=rng.choice([3.0, 30.0]),
        completion_grace=rng.choice([4.0, 12.0, 60.0]),
        request_timeout=rng.choice([2.0, 5.0, 30.0]),
        retry_for=rng.choice([4.0, 10.0]),
        block_warning=0,
        check_store=False,
    )
