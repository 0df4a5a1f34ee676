"""Breakages of the protocol, each of which the other two instruments must notice."""
