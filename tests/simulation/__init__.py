"""Whole fleets in virtual time, each from one seed, under the eyes of the auditor.

`_settings` draws a fleet from its seed; `_machine` is one process and what befalls it; `_actors` are those who use the
queue and those who disturb it; `_fleet` runs them all.
"""
