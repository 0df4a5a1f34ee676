"""`s3queue status --watch`: a live table on a terminal, a line a look elsewhere."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from s3queue._model import Look, QueueStatus
from s3queue._runtime import Runtime
from s3queue._watch import Watch
from s3queue.cli._display import ago

__all__ = ["follow", "status_fields"]

#: A look is followed by a pause of at least so many times its own duration; but a long pause costs more than it saves,
#: since everything is listed anew after it.
_PAUSE, _PAUSE_MOST = 4, 30.0
#: Owners that the table shows.
_OWNERS_MOST = 15


async def follow(watch: Watch, console: Console, *, interval: float, as_json: bool) -> QueueStatus:
    """Look every `interval` seconds until the workspace is complete; its counts then."""
    runtime = Runtime()
    table = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    with table or console:
        while True:
            began = runtime.monotonic()
            look = await watch.look()
            if table is not None:
                table.update(_picture(look), refresh=True)
            else:
                typer.echo(json.dumps(_fields(look)) if as_json else _line(look))
            if look.status.complete:
                return look.status
            await runtime.sleep(max(interval, min(_PAUSE * (runtime.monotonic() - began), _PAUSE_MOST)))


def status_fields(status: QueueStatus) -> dict[str, Any]:
    """What `status --json` says."""
    return {**dataclasses.asdict(status), "free": status.free, "complete": status.complete}


def _fields(look: Look) -> dict[str, Any]:
    return {
        **status_fields(look.status),
        "rate": look.rate,
        "eta": look.eta,
        "owners": [dataclasses.asdict(owner) for owner in look.owners],
        "unread": look.unread,
        "failures": [{"hash": group, **dataclasses.asdict(attempt)} for group, attempt in look.failures],
    }


def _line(look: Look) -> str:
    counts = look.status
    return (
        f"{counts.done} of {counts.groups} groups done, {counts.leased} running, {counts.expired} expired, "
        f"{counts.released} waiting, {counts.dead} dead, {counts.free} free{'' if counts.complete else _pace(look)}"
    )


def _pace(look: Look) -> str:
    rate = f", {look.rate:.1f} groups/s" if look.rate is not None else ""
    return rate + (f", {ago(look.eta)} left" if look.eta is not None else "")


def _picture(look: Look) -> Group:
    return Group(_counts(look), Text(), _owners(look), *_failures(look))


def _counts(look: Look) -> Table:
    counts = look.status
    columns = {
        "done": counts.done,
        "running": counts.leased,
        "expired": counts.expired,
        "waiting": counts.released,
        "dead": counts.dead,
        "free": counts.free,
        "groups": counts.groups,
    }
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("groups/s", justify="right")
    table.add_column("left", justify="right")
    rate = f"{look.rate:.1f}" if look.rate is not None else "…"
    left = ago(look.eta) if look.eta is not None else "…"
    table.add_row(*(str(count) for count in columns.values()), rate, left)
    return table


def _owners(look: Look) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("owner")
    table.add_column("leases", justify="right")
    table.add_column("renewed", justify="right")
    for owner in look.owners[:_OWNERS_MOST]:
        # A workspace's contents are not trusted: no markup, and no control characters.
        table.add_row(Text(_printable(owner.owner)), str(owner.groups), f"{ago(owner.age)} ago")
    others = look.owners[_OWNERS_MOST:]
    if others:
        table.add_row(f"and {len(others)} more", str(sum(owner.groups for owner in others)), "")
    if look.unread:
        table.add_row("not read yet", str(look.unread), "")
    return table


def _failures(look: Look) -> list[Text]:
    lines = [Text()] if look.failures else []
    for group, attempt in look.failures:
        text = f"{attempt.at}  {group[:8]}  {attempt.kind}: {attempt.error}"
        lines.append(Text(_printable(text), no_wrap=True, overflow="ellipsis"))
    return lines


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "�" for char in text)
