"""``--otel``: what the command line runs is told to an SDK, in each of its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from s3queue.cli._app import run

HANDLERS = """
import pathlib, os, time

def meets(path):
    pathlib.Path(f"pid.{os.getpid()}").touch()
    while len(list(pathlib.Path().glob("pid.*"))) < int(os.environ["PROCESSES"]):
        time.sleep(0.01)
    if path.startswith("bad"):
        raise ValueError(path)

async def reads(path):
    from opentelemetry import trace
    return format(trace.get_current_span().get_span_context().trace_id, "x")
"""

#: Of a program that has set up an SDK of its own before it runs the command line, as opentelemetry-instrument does.
HOST = """
import sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from s3queue.cli._app import run

spans, tracers, reader = InMemorySpanExporter(), TracerProvider(), InMemoryMetricReader()
tracers.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracers)
metrics.set_meter_provider(MeterProvider([reader]))
code = run(sys.argv[1:])
print(code, *sorted(span.name for span in spans.get_finished_spans()), sep="\\n", file=sys.stderr)
print(reader.get_metrics_data().to_json(indent=None), file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with handlers and a list of paths."""
    (tmp_path / "jobs_of_otel.py").write_text(HANDLERS)
    (tmp_path / "list").write_text("".join(f"path {number}\n" for number in range(11)) + "bad\n")
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(variable)
    return tmp_path


def told(folder: Path, *arguments: str, program: tuple[str, ...] = ("-m", "s3queue"), **environment: str) -> Any:
    command = [sys.executable, *program, "run", "ws", "--from-file", "list", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=90
    )


def objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects of OpenTelemetry's console exporters, among whatever else was written."""
    found, decoder = [], json.JSONDecoder()
    at = text.find("{\n")
    while at >= 0:
        value, end = decoder.raw_decode(text, at)
        found.append(value)
        at = text.find("{\n", end)
    return found


def counted(metrics: list[dict[str, Any]]) -> Counter[str]:
    """The counters, summed over processes and attributes."""
    sums: Counter[str] = Counter()
    for told in metrics:
        for resource in told["resource_metrics"]:
            for scope in resource["scope_metrics"]:
                for metric in scope["metrics"]:
                    sums[metric["name"]] += sum(point.get("value", 0) for point in metric["data"]["data_points"])
    return sums


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_what_is_sent(processes: int, folder: Path) -> None:
    """Spans and metrics of every process, by the exporters of the environment, the last ones as well."""
    done = told(
        folder, "--workers", "1", "--processes", str(processes), "--max-attempts", "1", "--handler",
        "jobs_of_otel:meets", S3QUEUE_OTEL="true", OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console",
        PROCESSES=str(processes),
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    found = objects(done.stdout)
    spans = [one for one in found if "context" in one]
    names = Counter(span["name"] for span in spans)
    assert names == {"s3queue.group": 12, "s3queue.handle": 12}
    groups = {span["context"]["span_id"] for span in spans if span["name"] == "s3queue.group"}
    assert {span["parent_id"] for span in spans if span["name"] == "s3queue.handle"} == groups
    resources = [span["resource"]["attributes"] for span in spans]
    assert {attributes["service.name"] for attributes in resources} == {"s3queue"}
    assert len({attributes["service.instance.id"] for attributes in resources}) == processes
    sums = counted([one for one in found if "resource_metrics" in one])
    assert sums["s3queue.groups.done"] == 11
    assert sums["s3queue.groups.failed"] == 1
    assert sums["s3queue.store.requests"] > 24


@pytest.mark.slow
def test_an_sdk_that_is_set_up_is_used(folder: Path) -> None:
    """It stays its owner's: nothing of ours ends it. The handler's own spans would belong to ours."""
    (folder / "host.py").write_text(HOST)

    done = told(folder, "--otel", "--handler", "jobs_of_otel:reads", program=("host.py",))

    code, *names, metrics = done.stderr.splitlines()
    assert code == "0", done.stderr
    assert Counter(names) == {"s3queue.group": 12, "s3queue.handle": 12}
    assert counted([json.loads(metrics)])["s3queue.paths.done"] == 12
    assert run(["results", "ws", "--output", "results"]) == 0
    traces = {json.loads(line)["result"] for line in (folder / "results").read_text().splitlines()}
    assert len(traces) == 12
    assert "0" not in traces


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk.trace"])
def test_without_its_packages(
    missing: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for and not there is a mistake, before anything is claimed; not asked for, nobody misses it."""
    assert run(["populate", "ws", "--from-file", "list"]) == 0
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "s3queue.telemetry", raising=False)
    monkeypatch.setenv("PROCESSES", "1")
    capsys.readouterr()

    assert run(["work", "ws", "--otel", "--once", "--handler", "jobs_of_otel:meets"]) == 2

    assert capsys.readouterr().err == (
        "s3queue: --otel needs an extra: pip install 's3queue[otel]' opentelemetry-sdk "
        "opentelemetry-exporter-otlp-proto-http\n"
    )
    assert not (folder / "ws" / "worker_locks").exists()
    monkeypatch.syspath_prepend(str(folder))
    assert run(["work", "ws", "--once", "--handler", "jobs_of_otel:meets"]) == 3


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"OTEL_METRICS_EXPORTER": "statsd"}, "no exporter 'statsd' for metrics is installed"),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "jaeger"}, "'jaeger' for traces"),
        ({"OTEL_METRICS_EXPORTER": "console", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'otlp' for traces"),
    ],
)
def test_an_exporter_that_is_not_there(
    environment: dict[str, str], complaint: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It is named, with the variable to set."""
    (folder / "ws").mkdir()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert run(["work", "ws", "--otel", "--", "echo", "{}"]) == 2

    told = capsys.readouterr().err
    assert complaint in told
    assert "_EXPORTER" in told
