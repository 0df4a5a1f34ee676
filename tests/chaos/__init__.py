"""Real processes on real stores, killed, stopped, cut off and out of space; audited by what their handlers wrote down.

`worker` is the process; `_monkey` does the harm; `_proxy` is a bad network; `_audit` reads the ledgers.
"""
