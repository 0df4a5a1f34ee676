"""`--otel`: what the command line runs, told to OpenTelemetry.

Under ``opentelemetry-instrument``, or wherever else an SDK is set up, that one is used. Otherwise it is set up here, in
each process of ``--processes``, too, from the standard ``OTEL_…`` variables; then it is also ended here, so that what
was measured last is sent.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from s3queue._errors import ConfigurationError
from s3queue._runtime import Runtime

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from s3queue.telemetry import Telemetry

__all__ = ["Otel", "telling_otel"]

Otel = Annotated[
    bool, typer.Option("--otel", help="Send metrics and spans by OpenTelemetry, where its OTEL_… variables say.")
]

#: What sends a signal if no variable says it: OpenTelemetry's own default.
_OTLP = "otlp"
#: The names of OTLP's exporters, by protocol; the first that is installed, if no variable says which.
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
#: Seconds that the last measurements get to be sent.
_LAST_WORDS = 5.0
_INSTALL = "pip install 's3queue[otel]' opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


@asynccontextmanager
async def telling_otel(wanted: bool) -> AsyncIterator[Telemetry | None]:
    """What observes queues and handlers inside the block; None unless it is wanted.

    Raises `ConfigurationError` for packages that are missing, and for an exporter that is not there.
    """
    if not wanted:
        yield None
        return
    try:
        from opentelemetry import trace

        from s3queue.telemetry import Telemetry

        end = _set_up() if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) else None
    except ImportError as missing:
        raise ConfigurationError(f"--otel needs an extra: {_INSTALL}") from missing
    try:
        yield Telemetry()
    finally:
        if end is not None:
            with anyio.move_on_after(_LAST_WORDS, shield=True):
                await anyio.to_thread.run_sync(end, abandon_on_cancel=True)


def _set_up() -> Callable[[], None]:
    """Make the process's SDK; returns what sends the rest and ends it."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = _resource()
    # One that is asked, such as Prometheus's, is a reader itself.
    made = list(_exporters("metrics"))
    readers = [one if isinstance(one, MetricReader) else PeriodicExportingMetricReader(one) for one in made]
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in _exporters("traces"):
        tracers.add_span_processor(BatchSpanProcessor(exporter))
    meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)

    def end() -> None:
        tracers.shutdown()
        meters.shutdown()

    return end


def _resource() -> Resource:
    """Who sends: as the environment says, else s3queue; and which process of it."""
    from opentelemetry.sdk.resources import Resource

    found = Resource.create()
    attributes = dict(found.attributes)
    if str(attributes["service.name"]).startswith("unknown_service"):
        attributes["service.name"] = "s3queue"
    # Without it, processes of one name would write over each other's counters.
    attributes.setdefault("service.instance.id", Runtime().token())
    return Resource(attributes, found.schema_url)


def _exporters(signal: str) -> Iterator[Any]:
    """A new one of each exporter that the environment names for `signal`: "traces" or "metrics"."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    for name in (os.environ.get(variable) or _OTLP).split(","):
        if name.strip() == "none":
            continue
        names = _otlp(signal) if name.strip() == _OTLP else [name.strip()]
        found = [one for name in names for one in entry_points(group=f"opentelemetry_{signal}_exporter", name=name)]
        if not found:
            raise ConfigurationError(
                f"--otel: no exporter {name.strip()!r} for {signal} is installed: pip install "
                f"opentelemetry-exporter-otlp-proto-http, or say in {variable} which is (console shows them here)"
            )
        try:
            exporter = found[0].load()()
        except Exception as error:  # whatever it finds wrong with its variables
            raise ConfigurationError(f"--otel: the exporter {name.strip()!r} for {signal}: {error}") from error
        yield exporter


def _otlp(signal: str) -> list[str]:
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if not protocol:
        return list(_PROTOCOLS.values())
    return [_PROTOCOLS.get(protocol.strip(), protocol.strip())]
