"""Runs every benchmark, keeps the results, draws them, and writes the tables of `benchmarks/README.md` anew.

What was kept from a run of one benchmark (`--json benchmarks/results/NAME.json`) less than two hours ago is taken as it
is, so that a long one need not be run again because another one failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import bars, client, cost
from benchmarks._common import Row, keep, machine, table

HERE = Path(__file__).parent
RESULTS, PLOTS, README = HERE / "results", HERE / "plots", HERE / "README.md"
FRESH = 7200
MEASURED = ("client", "claims", "paths", "start", "fleet")
#: The columns of each table, and which rows have them all.
COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "client": (client.COLUMNS,),
    "claims": (
        ("server", "workers", "side", "groups/s", "cpu s/1000", "requests/group"),
        ("processes", "groups", "requests/group", "run twice"),
        ("side", "workers", "items/s", "cpu s/1000"),
        ("side", "processes", "items", "requests/item", "run twice"),
    ),
    "paths": (("side", "paths/group", "paths/s", "cpu us/path", "requests/path"), ("side", "concurrency", "paths/s")),
    "start": (("groups", "% done", "seconds", "LIST pages", "requests", "peak bytes/group"),),
    "fleet": (("side", "processes", "groups", "requests/group", "wasted %", "run twice", "make-span/ideal"),),
    "cost": (("side", "what", "$ per million"),),
    "bars": (("bar", "value", "bound", "verdict"),),
}


PICTURES = {
    "claims": "Claim to completion, one process",
    "fleet": "Fleets of 20 workers a process, virtual time",
    "start": "From open to the first claim",
}


def run() -> list[Row]:
    """Everything; returns the rows of the bars."""
    found: dict[str, list[Row]] = {name: _measured(name) for name in MEASURED}
    found["cost"] = cost.costs(found["paths"], found["fleet"])
    found["bars"] = [bar.row() for bar in _bars(found)]
    cost.show(found["cost"])
    bars.show(found["bars"])
    draw(found)
    write(found)
    return found["bars"]


def _measured(name: str) -> list[Row]:
    kept = RESULTS / f"{name}.json"
    if kept.exists() and time.time() - json.loads(kept.read_text()).get("at", 0) < FRESH:
        print(f"{name}: as kept in {kept}")
    else:
        measure: Callable[[], list[Row]] = import_module(f"benchmarks.{name}").run
        keep(measure(), kept)
    rows: list[Row] = json.loads(kept.read_text())["rows"]
    return rows


def _bars(found: dict[str, list[Row]]) -> list[bars.Bar]:
    return [
        *bars.of_client(found["client"]),
        *bars.of_claims(found["claims"]),
        *bars.of_peers(found["claims"]),
        *bars.of_paths(found["paths"]),
        *bars.of_start(found["start"]),
        *bars.of_fleet(found["fleet"]),
    ]


def write(found: dict[str, list[Row]], readme: Path = README) -> None:
    """Put the tables between the marks of the README, and leave what is around them."""
    text = _between(readme.read_text(), "machine", ", ".join(f"{name} {value}" for name, value in machine().items()))
    for name, columns in COLUMNS.items():
        pictures = [f"![{title}](plots/{name}.png)"] if (title := PICTURES.get(name)) else []
        shown = "\n\n".join([*pictures, *(_block(found[name], one) for one in columns)])
        text = _between(text, name, shown)
    readme.write_text(text)


def _between(text: str, name: str, shown: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{shown}\n{end}{after}"


def _block(rows: Sequence[Row], columns: Sequence[str]) -> str:
    fitting = [row for row in rows if all(row.get(column) is not None for column in columns[:4])]
    return "\n".join(f"    {line}" for line in table(fitting, columns).splitlines())


def draw(found: dict[str, list[Row]], folder: Path = PLOTS) -> None:
    """A picture each of claims, fleets and starts."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)

    def plot(name: str, across: str, up: str, lines: dict[str, list[tuple[float, float]]]) -> None:
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        for label, points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
        axes.set(title=PICTURES[name], xlabel=across, ylabel=up, xscale="log", yscale="log")
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend(fontsize="small", framealpha=0.4)
        figure.savefig(folder / f"{name}.png", dpi=80, metadata={"Software": None})
        plt.close(figure)

    claims = [row for row in found["claims"] if "groups/s" in row and "workers" in row]
    plot(
        "claims", "workers", "groups a second",
        _lines(claims, lambda row: f"{row['side']}, {row['server']}", "workers", "groups/s"),
    )  # fmt: skip
    plot(
        "fleet", "processes", "requests a group",
        _lines(found["fleet"], lambda row: row["side"], "processes", "requests/group"),
    )  # fmt: skip
    plot(
        "start", "groups", "seconds",
        _lines(found["start"], lambda row: f"{row['% done']} % done", "groups", "seconds"),
    )  # fmt: skip


def _lines(rows: Sequence[Row], label: Callable[[Row], str], across: str, up: str) -> dict[str, Any]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(label(row), []).append((row[across], row[up]))
    return lines
