"""Starting a server process, waiting until it answers, and ending it for sure."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class S3Server:
    """How to reach an S3 server, and the bucket that the tests share."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    bucket: str

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the server by ordinary AWS configuration."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint,
        }


def free_port(*, also: int = 0) -> int:
    """A port that is free, as is the one `also` above it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((HOST, 0))
            port = first.getsockname()[1]
            if not also:
                return int(port)
            if port + also > 65535:
                continue
            try:
                second.bind((HOST, port + also))
            except OSError:
                continue
            return int(port)


@contextmanager
def running(command: Sequence[str], log: Path, *, url: str, within: float = 60.0) -> Iterator[None]:
    """Run a server until the block ends, which starts once `url` is answered, with whatever status."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        deadline = time.monotonic() + within
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True
