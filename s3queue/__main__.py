"""The entry point of the `s3queue` command."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say in one line what to install for it."""
    if find_spec("typer") is None or find_spec("rich") is None:
        sys.stderr.write("s3queue: the command line needs an extra: pip install 's3queue[cli]'\n")
        raise SystemExit(2)
    from s3queue.cli._app import run

    code = run(sys.argv[1:])
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        # Handlers in threads that outlasted their drain: their leases are handed back, and nobody waits for them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
