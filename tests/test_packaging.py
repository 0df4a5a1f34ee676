"""What an installation asks for, and brings."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from importlib.resources import files


def test_the_dependencies_are_few() -> None:
    """Nothing but these at run time, and no pin of botocore or boto3 of our own (B22)."""
    named = [
        re.split(r"[^a-z0-9-]", line, maxsplit=1)[0] for line in requires("s3queue") or [] if "extra ==" not in line
    ]

    assert sorted(named) == ["aiobotocore", "aiohttp", "anyio", "yarl", "zstandard"]
    assert not any(re.match(r"boto", line) for line in requires("s3queue") or [])


def test_the_environment_fits_together() -> None:
    """Next to moto and its boto3 every requirement holds (B22)."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


def test_types_are_shipped() -> None:
    """Type checkers find the hints, and the extras are the documented ones."""
    assert (files("s3queue") / "py.typed").is_file()
    assert metadata("s3queue").get_all("Provides-Extra") == ["bench", "cli", "fast", "otel", "test", "web"]
