"""``python -m tests.interleavings SCOPE [SCHEDULE]``: explore a scope (or ``all``), or replay one schedule of it."""

from __future__ import annotations

import sys
import time

from tests.interleavings._choices import parse
from tests.interleavings._explorer import explore, replay
from tests.interleavings._scopes import SCOPES


def main(name: str = "all", schedule: str | None = None) -> None:
    if schedule is None:
        for each in SCOPES if name == "all" else [name]:
            began = time.monotonic()
            report = explore(SCOPES[each])
            print(f"{report} in {time.monotonic() - began:.1f} s", flush=True)
            if report.broken is not None:
                print(report.failure())
        return
    outcome = replay(SCOPES[name], parse(schedule))
    print("\n".join(outcome.trace))
    if outcome.violation is not None:
        sys.exit(outcome.violation)


if __name__ == "__main__":
    main(*sys.argv[1:])
