"""Settings: checked when made, each error naming the field."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from s3queue import ConfigurationError, QueueOptions


@pytest.mark.parametrize("name", [field.name for field in fields(QueueOptions)])
@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, -math.inf, "10", "", None, [1], {}, 1j])
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    """A value of the wrong kind, or out of all bounds, is refused, and the line names the setting."""
    with pytest.raises(ConfigurationError, match=name):
        QueueOptions(**{name: value})


SWITCHES = ["unsafe_store", "check_store"]
NUMBERS = [field.name for field in fields(QueueOptions) if field.name not in SWITCHES]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_no_number(name: str, value: bool) -> None:
    """Python takes True for 1; whoever writes it here meant something else."""
    with pytest.raises(ConfigurationError, match=rf"^QueueOptions\.{name} "):
        QueueOptions(**{name: value})


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, 1.0])
def test_a_number_is_no_switch(name: str, value: Any) -> None:
    """Nor the other way round."""
    with pytest.raises(ConfigurationError, match=rf"^QueueOptions\.{name} must be True or False, not {value}$"):
        QueueOptions(**{name: value})


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"lease_ttl": 4}, ["lease_ttl", "margin"]),
        ({"lease_ttl": 0}, ["lease_ttl", "margin"]),
        ({"margin": 60}, ["lease_ttl", "margin"]),
        ({"max_attempts": 0}, ["max_attempts"]),
        ({"max_attempts": 1.5}, ["max_attempts"]),
        ({"max_attempts": 1001}, ["max_attempts"]),
        ({"backoff_max": 86_401}, ["backoff_max"]),
        ({"backoff": 1000}, ["backoff_max"]),
        ({"backoff_max": 5}, ["backoff_max"]),
        ({"connections": 0}, ["connections"]),
        ({"connections": 2.5}, ["connections"]),
        ({"claim_concurrency": 0}, ["claim_concurrency"]),
        ({"claim_concurrency": 0.5}, ["claim_concurrency"]),
        ({"request_timeout": 0}, ["request_timeout"]),
        ({"retry_for": 0}, ["retry_for"]),
        ({"poll_min": 0}, ["poll_min"]),
        ({"picture_ttl": 0}, ["picture_ttl"]),
        ({"index_refresh": 0}, ["index_refresh"]),
        ({"poll_max": 0.5}, ["poll_max", "poll_min"]),
        ({"poll_min": 20}, ["poll_max", "poll_min"]),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(values: dict[str, Any], names: list[str]) -> None:
    """Numbers out of their bounds, and such as contradict each other; the line names them."""
    with pytest.raises(ConfigurationError) as caught:
        QueueOptions(**values)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"lease_ttl": 5},
        {"lease_ttl": 1, "margin": 0},
        {"lease_ttl": 86_400},
        {"max_attempts": 1},
        {"max_attempts": 1000, "backoff_max": 86_400},
        {"backoff": 0, "backoff_max": 0},
        {"claim_ahead": 0, "claim_concurrency": 1, "connections": 1},
        {"block_warning": 0},
        {"poll_min": 0.01, "poll_max": 0.01},
        {"unsafe_store": True, "check_store": False},
    ],
)
def test_what_makes_sense_is_taken(values: dict[str, Any]) -> None:
    """The bounds themselves are allowed, and the values are kept as given."""
    options = QueueOptions(**values)
    assert {name: getattr(options, name) for name in values} == values


def test_settings_have_names() -> None:
    """No order to remember, and no setting that does not exist."""
    with pytest.raises(TypeError):
        QueueOptions(120.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="lease_time"):
        QueueOptions(lease_time=120.0)  # type: ignore[call-arg]


def test_a_wrong_setting_is_a_value_error() -> None:
    """As callers who do not know us expect."""
    with pytest.raises(ValueError, match="margin"):
        QueueOptions(margin=-1)


def test_settings_do_not_change() -> None:
    """A queue's settings are what it was opened with."""
    with pytest.raises(FrozenInstanceError):
        QueueOptions().lease_ttl = 1.0  # type: ignore[misc]
