"""Durations as people write them: ``3h50m``, ``90s``, ``1.5h``, or a number of seconds."""

from __future__ import annotations

import re

from s3queue._errors import ConfigurationError

__all__ = ["parse_duration"]

_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")


def parse_duration(text: str) -> float:
    """Seconds. Raises `ConfigurationError`."""
    written = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", written):
        return float(written)
    parts = _PART.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        raise ConfigurationError(f"{text!r} is no duration: write 3h50m, 90s, or a number of seconds")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
