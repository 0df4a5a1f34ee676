"""Other people's queues, each in a virtual environment of its own, each run by a script of its own.

A script gets its orders as one JSON argument and prints its numbers as one line of JSON. What cannot be had here (no
network, no Redis, no Python that is new enough) is skipped, and the reason is told.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers._process import HOST, free_port

__all__ = ["PEERS", "Peer", "Skipped", "available", "finish", "redis_server", "run", "start"]

_HERE = Path(__file__).parent
_LIMIT = 900


class Skipped(Exception):
    """This peer cannot be run here, for the reason given."""


@dataclass(frozen=True)
class Peer:
    """One queue: what to install, and the oldest Python that will do."""

    name: str
    requirements: tuple[str, ...]
    script: str
    python: tuple[int, int] = (3, 11)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("buquet", ("buquet==0.1.0",), "run_buquet.py"),
        Peer("pawn-queue", ("pawn-queue==0.1.3",), "run_pawn.py"),
        Peer("pailq", ("pailq==0.1.1",), "run_pail.py", python=(3, 12)),
        Peer("SAQ", ("saq[redis,hiredis]==0.26.4", "typing_extensions", "uvloop"), "run_saq.py"),
        Peer("arq", ("arq==0.28.0", "hiredis", "uvloop"), "run_arq.py"),
    )
}


def start(name: str, orders: dict[str, Any]) -> subprocess.Popen[str]:
    """Run a peer's script; `finish` waits for its numbers. Raises `Skipped`."""
    peer = PEERS[name]
    command = [str(_interpreter(peer)), str(_HERE / peer.script), json.dumps(orders)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The numbers of a script that was started."""
    out, errors = process.communicate(timeout=_LIMIT)
    if process.returncode:
        raise RuntimeError(f"{process.args[1]!r} failed:\n{errors[-2000:]}")  # type: ignore[index]
    numbers: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return numbers


def run(name: str, orders: dict[str, Any]) -> dict[str, Any]:
    """Both. Raises `Skipped`."""
    return finish(start(name, orders))


def available(names: Iterable[str]) -> list[str]:
    """Those of these peers that can be run here; of the others it is told why not."""
    found = []
    for name in names:
        try:
            _interpreter(PEERS[name])
            found.append(name)
        except Skipped as why:
            print(f"left out: {why}")
    return found


@cache
def _interpreter(peer: Peer) -> Path:
    """The Python of the peer's environment, which is made if it is not there yet, and kept for the next time."""
    python = _python(peer.python)
    folder = Path(tempfile.gettempdir()) / f"s3queue-bench-{os.getuid()}" / "-".join([peer.name, *python.parts[-1:]])
    inside, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists() and ready.read_text() == repr(peer):
        return inside
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making an environment for {peer.name} ...", file=sys.stderr)
    for command in (
        [str(python), "-m", "venv", str(folder)],
        [str(inside), "-m", "pip", "install", "-q", "--disable-pip-version-check", *peer.requirements],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
        if done.returncode:
            raise Skipped(f"{peer.name}: {' '.join(command[-3:])}: {done.stderr.strip().splitlines()[-1:]}")
    ready.write_text(repr(peer))
    return inside


def _python(least: tuple[int, int]) -> Path:
    """A Python that is new enough: this one, one on the PATH, or one of pyenv's. Raises `Skipped`."""
    if sys.version_info >= least:
        return Path(sys.executable)
    names = [f"python3.{minor}" for minor in range(least[1], least[1] + 4)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [Path(found) for name in names if (found := shutil.which(name))]
    candidates += [python for name in names for python in sorted(pyenv.glob(f"*/bin/{name}"))]
    for python in candidates:
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    raise Skipped(f"there is no Python >= {least[0]}.{least[1]} here")


@contextmanager
def redis_server() -> Iterator[str | None]:
    """A Redis in memory; yields its URL, or None where there is no such program."""
    binary = shutil.which("redis-server")
    if binary is None:
        print("left out: there is no redis-server here (Debian's package has this name)")
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not _listens(port):
                if process.poll() is not None:
                    raise RuntimeError("redis-server did not start")
                time.sleep(0.05)
            yield f"redis://{HOST}:{port}"
        finally:
            process.terminate()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
