"""What a million groups, and a million paths, cost at S3's list prices, from requests that were counted.

Prices are those of S3 Standard in us-east-1, requests only; refused conditional writes are billed like others. The
requests of one process are those that `paths` counted, a fleet's those of `fleet`.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks import fleet, paths
from benchmarks._common import Row, table

#: Dollars a request, by our verbs and by those of HTTP. Deletions are free, and so is `DeleteObjects`.
PRICES = {"put": 5e-6, "list": 5e-6, "get": 0.4e-6, "head": 0.4e-6, "delete": 0.0, "delete_many": 0.0}
#: What the protocol of others asks for where nobody is in its way: HEAD, HEAD, PUT, PUT, DELETE.
FIVE_REQUESTS = {"head": 2.0, "put": 2.0, "delete": 1.0}


def dollars(requests: Mapping[str, float]) -> float:
    """For a million times these requests."""
    return 1e6 * sum(PRICES[verb] * count for verb, count in requests.items())


def of_row(row: Row, unit: str) -> float:
    """Dollars for a million units, from a row with requests a unit by verb."""
    return dollars({verb: row[f"{verb}/{unit}"] for verb in PRICES if f"{verb}/{unit}" in row})


def costs(path_rows: list[Row], fleet_rows: list[Row]) -> list[Row]:
    """A row for each thing that was counted."""
    rows: list[Row] = []
    for row in path_rows:
        if row["side"] == "s3queue":
            size = row["paths/group"]
            rows.append({"side": "s3queue", "what": f"paths, {size} a group", "$ per million": of_row(row, "path")})
    rows.append({"side": "five requests", "what": "groups, one process", "$ per million": dollars(FIVE_REQUESTS)})
    rows += [
        {"side": row["side"], "what": f"groups, processes: {row['processes']}", "$ per million": of_row(row, "group")}
        for row in fleet_rows
    ]
    return rows


def run() -> list[Row]:
    """Count, then print and return a row for each thing that was counted."""
    path_rows = paths.run(rounds=1, with_peers=False)
    fleet_rows = fleet.run(ours=((10, 20_000),), others=((10, 5_000),))
    rows = costs(path_rows, fleet_rows)
    show(rows)
    return rows


def show(rows: list[Row]) -> None:
    """Print them."""
    print("\ndollars for the requests of a million")
    print(table(rows, ("side", "what", "$ per million")))
