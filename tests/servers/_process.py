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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

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
    """A port that is free, as is the one `also` above it.

    Below those that the system gives to clients (from 32768 on): a server that is started again finds it free still.
    """
    while True:
        port = SystemRandom().randrange(10_000, 22_000)
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind((HOST, port))
            if also:
                second.bind((HOST, port + also))
            return port


class Running:
    """A server process that can be killed, and started again as it was."""

    def __init__(self, command: Sequence[str], log: Path, *, url: str, within: float = 60.0) -> None:
        self._command, self._log, self._url, self._within = command, log, url, within
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once `url` is answered, with whatever status. Raises `RuntimeError`."""
        with self._log.open("ab") as output:
            process = self._process = subprocess.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + self._within
        while not _answers(self._url):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self._command[0]} did not start: {tail}")
            time.sleep(0.05)

    def kill(self) -> None:
        """It, and what it started; at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def running(command: Sequence[str], log: Path, *, url: str, within: float = 60.0) -> Iterator[Running]:
    """Run a server until the block ends, which starts once `url` is answered."""
    server = Running(command, log, url=url, within=within)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True
