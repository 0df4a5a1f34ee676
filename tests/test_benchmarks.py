"""The benchmarks run, at a size that says nothing; what they count themselves is counted right."""

from __future__ import annotations

import shutil
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bars, claims, cost, fleet, paths, report, start
from benchmarks._common import medians, table
from benchmarks.counting_proxy import RequestCounter, counting
from benchmarks.null_server import counts, null_server
from benchmarks.peers._ledger import Ledger


@pytest.mark.server
def test_claims() -> None:
    """Both sides complete all groups; several processes share them without running one twice."""
    rows = claims.run(groups={"null": 40}, workers=(4,), fleets=((2, 40),), rounds=1, with_peers=False)

    ours, others, shared = rows
    assert ours["requests/group"] < 3
    assert others["requests/group"] == pytest.approx(5, abs=0.01)
    assert shared["run twice"] == 0


@pytest.mark.server
def test_paths() -> None:
    """More paths a group are fewer requests a path."""
    rows = paths.run(sizes={1: 20, 50: 4}, rounds=1, with_peers=False)

    one, fifty = rows
    assert one["requests/path"] > 2 > 0.3 > fifty["requests/path"]
    assert fifty["put/path"] == pytest.approx(2 / 50)


@pytest.mark.server
def test_start() -> None:
    """The first claim needs a page of flags and one of locks, however many groups are done."""
    rows = start.measure(3000, (0, 95), 1)

    assert [row["LIST pages"] for row in rows] == [2, 2]


def test_fleet() -> None:
    """Both sides finish; the other protocol asks for more."""
    ours, others = fleet.run(ours=((3, 300),), others=((3, 300),))

    assert ours["run twice"] == 0
    assert 2 <= ours["put/group"] < 2.5
    assert others["requests/group"] > ours["requests/group"]
    assert 1 <= ours["make-span/ideal"] < 2


def test_a_fleet_is_the_same_each_time() -> None:
    """Nothing in it depends on the machine."""
    one, other = (fleet.simulate("s3queue", 2, 100) for _ in range(2))

    assert {**one, "wall s": 0} == {**other, "wall s": 0}


def test_costs() -> None:
    """S3's list prices; deletions are free."""
    assert cost.dollars({"put": 2, "get": 1, "delete": 9}) == pytest.approx(10.4)
    assert cost.of_row({"put/path": 0.02, "paths/s": 1}, "path") == pytest.approx(0.1)


@pytest.mark.parametrize(("value", "verdict"), [(2.0, "holds"), (2.1, "fails"), (None, "left out")])
def test_a_bar(value: float | None, verdict: str) -> None:
    """Its verdict says on which side of its bound the value is."""
    assert bars.Bar("x", value, "<=", 2.0).row()["verdict"] == verdict


def test_report_fills_the_readme(tmp_path: Path) -> None:
    """The tables come between their marks, also the second time; all else stays."""
    readme = tmp_path / "README.md"
    shutil.copy(report.README, readme)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in report.COLUMNS}
    found["bars"] = [bars.Bar("a bar of this test", 1.0, "<=", 2.0).row()]

    for _ in range(2):
        report.write(found, readme)

    text = readme.read_text()
    assert text.count("a bar of this test") == 1
    assert text.startswith("# Benchmarks")
    assert text.rstrip().endswith("<!-- end of cost -->")


@pytest.mark.server
def test_the_proxy_counts_what_the_server_counts() -> None:
    """By verb, whatever the size of the body."""
    with null_server() as server, counting(server) as (proxied, counted):
        for body in (b"", b"x" * 100_000):
            request = urllib.request.Request(f"{proxied.endpoint}/bucket/key", data=body, method="PUT")
            urllib.request.urlopen(request).close()
        urllib.request.urlopen(f"{proxied.endpoint}/bucket/?list-type=2").close()
        told = counts(server)

    assert counted == told == {"PUT": 2, "LIST": 1}


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_requests_are_found_however_they_are_cut(size: int) -> None:
    """Bodies of known length and in chunks, which may look like requests."""
    text = (
        b"PUT /b/k HTTP/1.1\r\nContent-Length: 19\r\n\r\nGET / HTTP/1.1\r\n\r\n."
        b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n3;x=y\r\nGET\r\n0\r\nx-trailer: 1\r\n\r\n"
        b"GET /b?list-type=2&prefix=x HTTP/1.1\r\n\r\n"
        b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"DELETE /b/k HTTP/1.1\r\n\r\n"
    )
    counted: Counter[str] = Counter()
    counter = RequestCounter(counted)

    for at in range(0, len(text), size):
        counter.feed(text[at : at + size])

    assert counted == {"PUT": 3, "LIST": 1, "DELETE": 1}


def test_the_ledger_is_complete_when_every_item_ran(tmp_path: Path) -> None:
    """Whoever ran it; an item that ran twice counts once."""
    one, other = (Ledger(str(tmp_path / "ledger"), 2) for _ in range(2))

    one.note(0)
    other.note(0)
    assert not one.complete
    other.note(1)

    assert one.complete
    assert other.noted == 2


def test_tables_and_medians() -> None:
    """Columns are aligned, and what is missing is empty."""
    assert medians([{"a": 1.0}, {"a": 5.0}, {"a": 2.0}]) == {"a": 2.0}
    assert medians([{"a": 1.0}, {"b": 5.0, "a": 3.0}, {"a": 2.0}]) == {"a": 2.0, "b": 0.0}
    assert table([{"a": 1234.5, "b": "x"}, {"b": "yy"}], ["a", "b"]).splitlines() == [
        "    a   b",
        "1,234   x",
        "       yy",
    ]


def test_pinning_has_one_place() -> None:
    """A benchmark that leaves its process on one processor makes the next one share that with its server."""
    folder = Path(bars.__file__).parent

    assert [path.name for path in folder.rglob("*.py") if "sched_setaffinity" in path.read_text()] == ["_common.py"]
