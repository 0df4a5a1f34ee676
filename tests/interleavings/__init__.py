"""Every interleaving, every fault: the real code on a store whose every operation waits for the explorer.

`_gate` holds the operations; `_world` runs one schedule; `_choices` says what may happen next; `_explorer` enumerates.
"""
