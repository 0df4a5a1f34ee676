"""What speed was promised, against what it is here and now: each bar with its value, its bound and a verdict."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import claims, client, fleet, paths, start, versus
from benchmarks._common import Row, table

WORKERS = 64


@dataclass(frozen=True)
class Bar:
    """One promise; `value` is None where a peer could not be had."""

    what: str
    value: float | None
    sign: str
    bound: float

    def row(self) -> Row:
        """As it is printed."""
        verdict = "left out"
        if self.value is not None:
            holds: Callable[[Any, Any], bool] = {"<=": operator.le, ">=": operator.ge}[self.sign]
            verdict = "holds" if holds(self.value, self.bound) else "fails"
        return {"bar": self.what, "value": self.value, "bound": f"{self.sign} {self.bound:,g}", "verdict": verdict}


def of_client(rows: list[Row]) -> list[Bar]:
    """CPU a request."""
    verbs = {row["verb"]: row for row in rows if row["server"] == "seaweedfs"}
    put, page = verbs["PUT create"], verbs["LIST 1000"]
    return [
        Bar("CPU of a conditional PUT, ours / aiobotocore", put["ours/SDK"], "<=", 0.28),
        Bar("CPU of a conditional PUT, ours / obstore", put.get("ours/obstore"), "<=", 1.3),
        Bar("CPU of a LIST page of 1000, ours / aiobotocore", page["ours/SDK"], "<=", 0.10),
    ]


def of_claims(rows: list[Row]) -> list[Bar]:
    """Claim to completion, against the five-request protocol and in several processes of ours."""
    alone = {(row["server"], row["workers"]): row for row in rows if "ours/theirs" in row and "lag p99 ms" in row}
    null = alone["null", WORKERS]
    bars = [
        Bar("requests a group, one process, 2000 groups", null["requests/group"], "<=", 2.05),
        Bar("groups/s, ours / five requests, null server", null["ours/theirs"], ">=", 8),
        Bar("groups/s, ours / five requests, SeaweedFS", alone["seaweedfs", WORKERS]["ours/theirs"], ">=", 3),
        Bar("lag of the loop at 64 workers, p99, ms", null["lag p99 ms"], "<=", 20),
    ]
    for row in rows:
        if row["side"] == "s3queue" and "processes" in row:
            groups, bound = row["groups"], 2.3 if row["groups"] <= 500 else 2.1
            bars.append(Bar(f"requests a group, 4 processes, {groups} groups", row["requests/group"], "<=", bound))
            bars.append(Bar(f"groups run twice, 4 processes, {groups} groups", row["run twice"], "<=", 0))
    return bars


def of_peers(rows: list[Row]) -> list[Bar]:
    """Against other queues on S3."""
    sides = {row["side"]: row for row in rows if "items/s" in row}

    def ratio(side: str, column: str) -> float | None:
        return sides[side][column] if side in sides else None

    return [
        Bar("groups/s, ours / buquet, SeaweedFS", ratio("buquet", "ours/theirs"), ">=", 4),
        Bar("groups/s, ours / pawn-queue, SeaweedFS", ratio("pawn-queue", "ours/theirs"), ">=", 8),
        Bar("groups/s, ours / pailq, SeaweedFS", ratio("pailq", "ours/theirs"), ">=", 8),
        Bar("client CPU, ours / buquet", ratio("buquet", "cpu ours/theirs"), "<=", 0.35),
    ]


def of_paths(rows: list[Row]) -> list[Bar]:
    """Work by path."""
    (big,) = (row for row in rows if row.get("paths/group") == 200)
    ratios = {row["side"]: row["ours/theirs"] for row in rows if "ours/theirs" in row}
    return [
        Bar("paths/s, 200 a group, null server", big["paths/s"], ">=", 20_000),
        Bar("requests a path, 200 a group", big["requests/path"], "<=", 0.03),
        Bar("paths/s, ours / SAQ", ratios.get("SAQ"), ">=", 10),
        Bar("paths/s, ours / arq", ratios.get("arq"), ">=", 10),
    ]


def of_start(rows: list[Row]) -> list[Bar]:
    """The start in a workspace of a million groups."""
    shares = {row["% done"]: row for row in rows if row["groups"] == 1_000_000}
    return [
        Bar("LIST pages to the first claim, 10^6 groups, 95 % done", shares[95]["LIST pages"], "<=", 10),
        Bar("time to it, 95 % done / 0 % done", shares[95]["seconds"] / shares[0]["seconds"], "<=", 1.5),
        Bar("bytes a group beyond the index's text, at the peak", shares[95]["peak bytes/group"], "<=", 100),
    ]


def of_fleet(rows: list[Row]) -> list[Bar]:
    """A hundred processes in virtual time."""
    (row,) = (row for row in rows if row["side"] == "s3queue" and row["processes"] == 100)
    name = f"100 x 20 workers, {row['groups']:,} groups"
    return [
        Bar(f"{name}: requests a group", row["requests/group"], "<=", 2.6),
        Bar(f"{name}: wasted claims, %", row["wasted %"], "<=", 5),
        Bar(f"{name}: make-span / ideal", row["make-span/ideal"], "<=", 1.10),
    ]


def run() -> list[Row]:
    """Measure what the bars need; print and return a row a bar."""
    bars = of_client(client.run())
    bars += of_claims(claims.run(workers=(WORKERS,), with_peers=False))
    bars += of_peers(versus.run(rounds=2, with_fleets=False))
    bars += of_paths(paths.run())
    bars += of_start(start.measure(1_000_000, (0, 95), 1))
    bars += of_fleet(fleet.run(ours=((100, 100_000),), others=()))
    rows = [bar.row() for bar in bars]
    show(rows)
    return rows


def show(rows: list[Row]) -> None:
    """Print them, the failed ones once more at the end."""
    print("\n" + table(rows, ("bar", "value", "bound", "verdict")))
    failed = [row["bar"] for row in rows if row["verdict"] == "fails"]
    print(f"\n{len(failed)} of {len(rows)} bars fail" + "".join(f"\n  {bar}" for bar in failed))
