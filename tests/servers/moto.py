"""moto's server: a second opinion on S3. It honours conditions, but has no lock round the check."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers._process import HOST, S3Server, free_port, running


@contextmanager
def moto_server(folder: Path) -> Iterator[S3Server]:
    """A server without a bucket yet."""
    port = free_port()
    endpoint = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    with running(command, folder / "moto.log", url=endpoint):
        yield S3Server("moto", endpoint, "testing", "testing", "tests")
