"""Metrics and spans of a queue, by OpenTelemetry's API (extra ``otel``).

::

    telemetry = Telemetry()
    async with open_queue(workspace, observer=telemetry) as queue:
        await queue.run(telemetry.traced(convert), per="path")

An SDK that the program has set up (or ``opentelemetry-instrument``) sends them out; without one every call is a no-op.
On the command line ``s3queue work --otel`` does all of this, and sets an SDK up if there is none.

==================================  =========  =====================================================================
metric                              kind       what
==================================  =========  =====================================================================
``s3queue.groups.claimed``          counter    groups that this process won
``s3queue.groups.done``             counter    groups that it completed
``s3queue.groups.failed``           counter    failed attempts; ``dead``
``s3queue.groups.released``         counter    groups handed back
``s3queue.paths.done``              counter    paths that the handler finished (``per="path"``)
``s3queue.paths.failed``            counter    paths that it failed on; ``dead``
``s3queue.leases.renewed``          counter    renewals
``s3queue.leases.lost``             counter    leases lost
``s3queue.leases.taken_over``       counter    groups taken over from owners that vanished
``s3queue.claims.conflicts``        counter    claims that somebody else won
``s3queue.store.requests``          counter    requests to the store, retries included; ``verb``, ``outcome``
``s3queue.store.request.duration``  histogram  seconds a request; ``verb``, ``outcome``
``s3queue.group.duration``          histogram  seconds from claim to end; ``outcome``
``s3queue.groups.in_flight``        gauge      groups that this process holds now
``s3queue.groups.state``            gauge      groups of the workspace by ``state``, as far as this process has looked
==================================  =========  =====================================================================

Spans: ``s3queue.group``, from the claim to its end, with the group's hash, epoch and outcome; and, for handlers wrapped
by `Telemetry.traced`, ``s3queue.handle`` below it, which is current while the handler runs, so that the handler's own
spans belong to it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

try:
    from opentelemetry import metrics, trace
except ImportError as missing:
    raise ImportError("s3queue.telemetry needs an extra: pip install 's3queue[otel]'") from missing

from s3queue._events import Event
from s3queue._handlers import current_item
from s3queue._runtime import Runtime

__all__ = ["Telemetry"]

F = TypeVar("F", bound=Callable[..., Any])

_SCOPE = "s3queue"
#: What is counted each time an event happens, with the fields that become attributes.
_COUNTERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "group.claimed": ("s3queue.groups.claimed", "{group}", ()),
    "group.done": ("s3queue.groups.done", "{group}", ()),
    "group.failed": ("s3queue.groups.failed", "{group}", ("dead",)),
    "group.released": ("s3queue.groups.released", "{group}", ()),
    "path.done": ("s3queue.paths.done", "{path}", ()),
    "path.failed": ("s3queue.paths.failed", "{path}", ("dead",)),
    "lease.renewed": ("s3queue.leases.renewed", "{renewal}", ()),
    "lease.lost": ("s3queue.leases.lost", "{lease}", ()),
    "lease.taken_over": ("s3queue.leases.taken_over", "{lease}", ()),
    "claim.conflict": ("s3queue.claims.conflicts", "{claim}", ()),
    "store.request": ("s3queue.store.requests", "{request}", ("verb", "outcome")),
}
#: How our part in a group ends; "lock.left" is also said of other locks, which then end nothing.
_ENDS = {
    "group.done": "done",
    "group.failed": "failed",
    "group.released": "released",
    "lease.lost": "lost",
    "lock.left": "left",
}


@dataclass(frozen=True, slots=True)
class _Running:
    span: trace.Span
    began: float


class Telemetry:
    """An observer of queues that keeps metrics and spans. One may observe several queues of a process.

    The providers are the process's own unless given. Attributes hold no paths and, in metrics, no hashes.
    """

    def __init__(
        self,
        *,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        self._runtime = runtime or Runtime()
        self._running: dict[str, _Running] = {}
        self._counters = {name: meter.create_counter(metric, unit) for name, (metric, unit, _) in _COUNTERS.items()}
        self._requests = meter.create_histogram("s3queue.store.request.duration", "s")
        self._groups = meter.create_histogram("s3queue.group.duration", "s")
        self._in_flight = meter.create_up_down_counter("s3queue.groups.in_flight", "{group}")
        self._depth = meter.create_gauge("s3queue.groups.state", "{group}")

    def __repr__(self) -> str:
        return f"<Telemetry in_flight={len(self._running)}>"

    def __call__(self, event: Event) -> None:
        """Observe an event."""
        if event.name in _COUNTERS:
            self._count(event)
        match event.name:
            case "group.claimed":
                self._begin(event)
            case "store.request":
                self._requests.record(event.fields["seconds"], _some(event, "verb", "outcome"))
            case "queue.depth":
                for state, count in event.fields.items():
                    self._depth.set(count, {"state": state})
            case "path.failed":
                self._note(event)
            case name if name in _ENDS:
                self._end(event, _ENDS[name])

    def traced(self, handler: F) -> F:
        """The same handler, each call of it in a span of its own."""
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004 - asks for the method itself

            @functools.wraps(handler)
            async def handle(argument: Any) -> Any:
                with self._handling():
                    return await handler(argument)

        else:

            @functools.wraps(handler)
            def handle(argument: Any) -> Any:
                with self._handling():
                    return handler(argument)

        return handle  # type: ignore[return-value] # the wrapper is called as the handler is

    @contextmanager
    def _handling(self) -> Iterator[None]:
        item = current_item()
        running = self._running.get(item.hash)
        context = trace.set_span_in_context(running.span) if running is not None else None
        attributes: dict[str, str | int] = {"s3queue.group": item.hash, "s3queue.epoch": item.epoch}
        with self._tracer.start_as_current_span("s3queue.handle", context, attributes=attributes):
            yield

    def _count(self, event: Event) -> None:
        _, _, attributes = _COUNTERS[event.name]
        self._counters[event.name].add(event.fields.get("count", 1), _some(event, *attributes))

    def _begin(self, event: Event) -> None:
        group = event.fields["hash"]
        attributes = {"s3queue.group": group, "s3queue.epoch": event.fields["epoch"]}
        self._running[group] = _Running(
            self._tracer.start_span(
                "s3queue.group", trace.set_span_in_context(trace.INVALID_SPAN), attributes=attributes
            ),
            self._runtime.monotonic(),
        )
        self._in_flight.add(1)

    def _note(self, event: Event) -> None:
        running = self._running.get(event.fields["hash"])
        if running is not None:
            running.span.add_event("path failed", {"error": event.fields["error"], "dead": event.fields["dead"]})

    def _end(self, event: Event, outcome: str) -> None:
        running = self._running.pop(event.fields.get("hash", ""), None)
        if running is None:
            return
        self._in_flight.add(-1)
        self._groups.record(self._runtime.monotonic() - running.began, {"outcome": outcome})
        running.span.set_attribute("s3queue.outcome", outcome)
        if "error" in event.fields:
            running.span.set_status(trace.StatusCode.ERROR, str(event.fields["error"]))
        running.span.end()


def _some(event: Event, *names: str) -> dict[str, Any]:
    return {name: event.fields[name] for name in names}
