"""Metrics and spans, through OpenTelemetry's own in-memory reader and exporter."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from s3queue import Backend, PermanentError, QueueOptions, WorkItem, WorkQueue
from s3queue.stores import MemoryBucket, MemoryStore
from s3queue.telemetry import Telemetry
from s3queue.testing import SeededRuntime
from tests.virtual import virtual


class Lab:
    """A workspace in memory, and what an SDK collects of queues on it."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.spans = InMemorySpanExporter()
        tracer_provider = TracerProvider()
        tracer_provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = tracer_provider.get_tracer("test")
        self.bucket = MemoryBucket()
        self.runtime = SeededRuntime(1)
        self.telemetry = Telemetry(
            meter_provider=MeterProvider([self.reader]), tracer_provider=tracer_provider, runtime=self.runtime
        )

    def queue(self, seed: int = 1, **options: Any) -> WorkQueue:
        store = MemoryStore(SeededRuntime(seed), self.bucket)
        settings = QueueOptions(check_store=False, **options)
        return WorkQueue(Backend(store), options=settings, runtime=SeededRuntime(seed), observer=self.telemetry)

    def points(self) -> dict[str, dict[tuple[Any, ...], Any]]:
        """Each metric's values, by their attributes' values."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: {
                tuple((point.attributes or {}).values()): getattr(point, "value", getattr(point, "count", None))
                for point in metric.data.data_points
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def finished(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]


def group_of(span: ReadableSpan) -> Any:
    return (span.attributes or {})["s3queue.group"]


@virtual
async def test_a_run_is_counted() -> None:
    """Claims, completions, failures, requests and what is left are what the run did."""
    lab = Lab()
    queue = lab.queue(lease_ttl=30)

    async def handle(path: str) -> None:
        await lab.runtime.sleep(15)
        if path == "b":
            raise PermanentError("never")

    await queue.populate_queue(["a", "b", "c"])
    await queue.run(handle, per="path", workers=2, handle_signals=False)
    points = lab.points()

    assert points["s3queue.groups.claimed"] == {(): 3}
    assert points["s3queue.groups.done"] == {(): 2}
    assert points["s3queue.groups.failed"] == {(True,): 1}
    assert points["s3queue.paths.done"] == {(): 2}
    assert points["s3queue.paths.failed"] == {(True,): 1}
    assert points["s3queue.leases.renewed"][()] >= 3
    assert points["s3queue.groups.in_flight"] == {(): 0}
    assert points["s3queue.group.duration"] == {("done",): 2, ("failed",): 1}
    assert set(points["s3queue.groups.state"]) == {("open",), ("held",), ("dead",), ("mine",), ("done",)}
    requests = points["s3queue.store.requests"]
    assert requests == points["s3queue.store.request.duration"]
    assert {verb for verb, _ in requests} >= {"get", "put", "list"}
    assert ("get", "NotFound") in requests  # there was no index before


@virtual
async def test_what_goes_wrong_is_counted() -> None:
    """A lost lease, a take-over and a group handed back each show, once."""
    lab = Lab()
    first, second = lab.queue(1, lease_ttl=10), lab.queue(2, lease_ttl=10)
    await first.populate_queue(["a"])

    lost = await first.get_work()  # bare: nobody renews it
    assert lost is not None
    await lab.runtime.sleep(60)
    taken = await second.get_work()
    assert taken is not None
    with pytest.raises(Exception, match="taken over"):
        await first.mark_done(lost)
    await second.release(taken)
    points = lab.points()

    assert points["s3queue.leases.lost"] == {(): 1}
    assert points["s3queue.leases.taken_over"] == {(): 1}
    assert points["s3queue.groups.released"] == {(): 1}


@virtual
async def test_a_handlers_spans_belong_to_its_group() -> None:
    """A span from the claim to the end, below it one for each call of the handler, below that the handler's own."""
    lab = Lab()
    queue = lab.queue()

    async def handle(item: WorkItem) -> None:
        with lab.tracer.start_as_current_span("mine"):
            await lab.runtime.sleep(1)
        if item.work_paths == ("b",):
            raise PermanentError("never")

    await queue.populate_queue(["a", "b"])
    await queue.run(lab.telemetry.traced(handle), handle_signals=False)
    groups = {span.context.span_id: span for span in lab.finished("s3queue.group")}
    calls = {span.context.span_id: span for span in lab.finished("s3queue.handle")}

    assert sorted((span.attributes or {})["s3queue.outcome"] for span in groups.values()) == ["done", "failed"]
    assert {span.status.status_code for span in groups.values()} == {trace.StatusCode.UNSET, trace.StatusCode.ERROR}
    for span in calls.values():
        assert span.parent is not None
        assert group_of(span) == group_of(groups[span.parent.span_id])
    assert sorted(span.parent.span_id for span in lab.finished("mine") if span.parent) == sorted(calls)


@virtual
async def test_a_plain_function_is_traced_in_its_thread() -> None:
    """The span is current there too."""
    lab = Lab()
    queue = lab.queue()

    def handle(path: str) -> str:
        with lab.tracer.start_as_current_span("mine"):
            return path

    await queue.populate_queue(["a"])
    await queue.run(lab.telemetry.traced(handle), per="path", handle_signals=False)
    (call,) = lab.finished("s3queue.handle")
    (mine,) = lab.finished("mine")

    assert mine.parent is not None
    assert mine.parent.span_id == call.context.span_id


@virtual
async def test_without_an_sdk_nothing_happens() -> None:
    """The API alone takes everything and keeps nothing."""
    lab = Lab()
    lab.telemetry = Telemetry(runtime=lab.runtime)
    queue = lab.queue()
    await queue.populate_queue(["a"])

    summary = await queue.run(lab.telemetry.traced(lambda path: path), per="path", handle_signals=False)

    assert summary.done == 1
    assert repr(lab.telemetry) == "<Telemetry in_flight=0>"


def test_without_the_api_it_says_what_to_install() -> None:
    """The package itself works without; asking for telemetry names the extra."""
    code = """if True:
        import sys
        sys.modules["opentelemetry"] = None
        import s3queue
        try:
            import s3queue.telemetry
        except ImportError as error:
            sys.exit(0 if "s3queue[otel]" in str(error) else str(error))
        sys.exit("it imported")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
