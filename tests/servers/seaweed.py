"""SeaweedFS: a real S3 server, which honours conditional PUT and DELETE."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers._process import HOST, Running, S3Server, free_port, running

_ACCESS, _SECRET, _BUCKET = "s3queue", "s3queue-tests", "tests"


@contextmanager
def seaweedfs(folder: Path) -> Iterator[S3Server]:
    """A server with one bucket, whose files are in `folder`."""
    with restartable_seaweedfs(folder) as (server, _):
        yield server


@contextmanager
def restartable_seaweedfs(folder: Path) -> Iterator[tuple[S3Server, Running]]:
    """The same, and its process."""
    binary = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if binary is None:
        raise RuntimeError("weed is missing: install the test extra")
    config = folder / "s3.json"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": _ACCESS, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    # Each port also takes the one 10000 above it, for gRPC.
    ports = {name: free_port(also=10000) for name in ("master", "volume", "filer", "s3")}
    command = [
        binary, "server", f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}", "-master.peers=none",
        "-volume.max=1000", "-master.volumeSizeLimitMB=64", "-filer", "-s3", f"-s3.config={config}",
        "-s3.port.iceberg=0", "-s3.port.lance=0", *(f"-{name}.port={port}" for name, port in ports.items()),
    ]  # fmt: skip
    endpoint = f"http://{HOST}:{ports['s3']}"
    with running(command, folder / "weed.log", url=endpoint) as process:
        yield S3Server("seaweedfs", endpoint, _ACCESS, _SECRET, _BUCKET), process
