"""Settings: checked when made, each error naming the field."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from s3queue import ConfigurationError, QueueOptions


@pytest.mark.parametrize("name", [field.name for field in fields(QueueOptions)])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "10", None, [1]])
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    """A value of the wrong kind, or out of all bounds, is refused, and the line names the setting."""
    with pytest.raises(ConfigurationError, match=name):
        QueueOptions(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"lease_ttl": True},
        {"lease_ttl": 4},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"connections": 0},
        {"request_timeout": 0},
        {"poll_max": 0.5},
        {"backoff": 1000},
        {"max_attempts": 1001},
        {"unsafe_store": 1},
    ],
)
def test_what_does_not_fit_together_is_refused(values: dict[str, Any]) -> None:
    """So are values that contradict each other."""
    with pytest.raises(ConfigurationError):
        QueueOptions(**values)


def test_settings_do_not_change() -> None:
    """A queue's settings are what it was opened with."""
    with pytest.raises(FrozenInstanceError):
        QueueOptions().lease_ttl = 1.0  # type: ignore[misc]
