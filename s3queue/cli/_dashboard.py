"""The command that serves the dashboard."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from importlib.util import find_spec
from typing import Annotated

import anyio
import typer
from rich.console import Console

from s3queue._errors import ConfigurationError, Throttled, Unanswered
from s3queue._queue import WorkQueue
from s3queue.cli._base import COMPLETE, Workspace, app, has_groups, looking_at, run_async
from s3queue.cli._words import no_groups

__all__: list[str] = []

_BACKLOG = 128
#: How long the first look, at the start, may take: a store that is silent now may answer when somebody looks.
_PATIENCE = 5.0


@app.command()
def dashboard(
    workspace: Workspace,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 takes any that is free.")] = 8710,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="S3QUEUE_DASHBOARD_TOKEN", metavar="SECRET", show_default=False,
            help="What viewers sign in with; needed to listen beyond this machine.",
        ),
    ] = None,
    allow_actions: Annotated[bool, typer.Option("--allow-actions", help="Let viewers retry failed groups.")] = False,
) -> int:  # fmt: skip
    """Show the workspace in a browser: progress, throughput, owners, failures; and to Prometheus, at /metrics.

    It looks at the store only while somebody looks at it. With a token, programs send it as `Authorization: Bearer`.

    Exit codes: 0 ended by Ctrl-C, 2 usage or configuration.

    Examples:

      s3queue dashboard s3://bucket/ws

      S3QUEUE_DASHBOARD_TOKEN=$(openssl rand -hex 16) s3queue dashboard s3://bucket/ws --host 0.0.0.0
    """
    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "prometheus_client")):
        raise ConfigurationError("the dashboard needs an extra: pip install 's3queue[web]'")
    if not _is_loopback(host) and token is None:
        raise ConfigurationError(
            f"whoever reaches {host} would see everything: add --token SECRET (or S3QUEUE_DASHBOARD_TOKEN), or listen "
            "on 127.0.0.1"
        )
    listening = _listen(host, port)

    async def main() -> None:
        import uvicorn

        from s3queue.web import dashboard as application

        async with looking_at(workspace) as queue:
            asgi = application(queue, allow_actions=allow_actions, token=token)
            await _look_first(workspace, queue)
            name, number = listening.getsockname()[:2]
            where = f"[{name}]" if ":" in name else name
            Console().print(f"dashboard: http://{where}:{number}/  (Ctrl-C ends it)", markup=False, soft_wrap=True)
            config = uvicorn.Config(
                asgi, lifespan="off", log_level="warning", access_log=False, server_header=False, ws="none",
                timeout_graceful_shutdown=2,
            )  # fmt: skip
            await uvicorn.Server(config).serve(sockets=[listening])

    with contextlib.closing(listening):
        run_async(main)
    return COMPLETE


async def _look_first(workspace: str, queue: WorkQueue) -> None:
    """Say now what would only show in a browser: no groups there. Raises `ConfigurationError` for no such bucket."""
    with anyio.move_on_after(_PATIENCE), contextlib.suppress(Unanswered, Throttled):
        if not await has_groups(queue):
            typer.echo(f"s3queue: {no_groups(workspace)}", err=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Raises `ConfigurationError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listening
