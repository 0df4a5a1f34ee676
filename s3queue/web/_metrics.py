"""What Prometheus is told of a workspace."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from s3queue._picture import Picture
from s3queue.web._watch import SharedWatch, told_counts

__all__ = ["Exposition"]


class Exposition(Collector):
    """The metrics of one watched workspace, from what the last look showed."""

    def __init__(self, watch: SharedWatch) -> None:
        self._watch = watch
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text, and its content type, in the format that `accept` asks for."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def describe(self) -> list[Metric]:
        """Nothing before it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        watch = self._watch
        up = GaugeMetricFamily("s3queue_up", "Whether the last look at the workspace succeeded.")
        up.add_metric([], float(bool(watch.looks) and not watch.error))
        yield up
        requests = CounterMetricFamily(
            "s3queue_dashboard_requests", "Requests of this dashboard to the store.", labels=["verb"]
        )
        for verb, count in sorted(watch.workspace.store.requests.items()):
            requests.add_metric([verb], count)
        yield requests
        if watch.picture is not None and watch.picture.digested:
            yield from self._workspace(watch.picture)

    def _workspace(self, picture: Picture) -> Iterator[Metric]:
        counts = told_counts(picture.status)
        states = GaugeMetricFamily("s3queue_groups", "Groups of the workspace by state.", labels=["state"])
        for state, count in counts.items():
            if state != "groups":
                states.add_metric([state], count)
        yield states
        depth = GaugeMetricFamily("s3queue_queue_depth", "Groups that are neither done nor dead.")
        depth.add_metric([], counts["groups"] - counts["done"] - counts["dead"])
        yield depth
        yield GaugeMetricFamily("s3queue_paths", "Paths in the index.", value=picture.paths)
        yield GaugeMetricFamily(
            "s3queue_groups_done_per_second",
            "Completions a second, over the last two minutes.",
            value=picture.rate or 0.0,
        )
        owners = GaugeMetricFamily("s3queue_owners", "Processes that hold leases.")
        owners.add_metric([], len(picture.owners))
        yield owners
        yield GaugeMetricFamily(
            "s3queue_last_look_timestamp_seconds", "The store's clock at the last look.", value=picture.date
        )
