"""The entry point of the `s3queue` command."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say in one line what to install for it."""
    if find_spec("typer") is None or find_spec("rich") is None:
        sys.stderr.write("s3queue: the command line needs an extra: pip install 's3queue[cli]'\n")
        raise SystemExit(2)
    from s3queue.cli._app import run

    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
