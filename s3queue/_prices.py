"""What requests cost: list prices of AWS us-east-1, in dollars, as of December 2026. Look at the vendor's page.

Requests that a condition refused are billed like others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["S3_EXPRESS", "S3_STANDARD", "SQS_STANDARD", "Prices", "prices_of"]

#: One request of SQS (standard queues), which takes up to ten messages.
SQS_STANDARD = 0.40e-6

#: Verbs of the store port by what they are billed as; deletions, single or many, are free.
_WRITES = ("put", "list")
_READS = ("get", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The price of one request, by class; storage and traffic not counted."""

    name: str
    #: PUT, COPY, POST and LIST.
    write: float
    #: GET and HEAD.
    read: float

    def cost(self, requests: Mapping[str, float]) -> float:
        """Dollars for so many requests, by the store port's verbs (as `RetryingStore.requests` counts them)."""
        writes = sum(requests.get(verb, 0) for verb in _WRITES)
        reads = sum(requests.get(verb, 0) for verb in _READS)
        return writes * self.write + reads * self.read


S3_STANDARD = Prices(name="S3 Standard", write=5.00e-6, read=0.40e-6)
S3_EXPRESS = Prices(name="S3 Express One Zone", write=1.13e-6, read=0.03e-6)


def prices_of(store: str) -> Prices | None:
    """The prices that apply to a store of this name, or are nearest to; None where requests cost nothing."""
    if not store.startswith("s3://"):
        return None
    bucket = store.removeprefix("s3://").split("/")[0].split(" ")[0]
    return S3_EXPRESS if bucket.endswith("--x-s3") else S3_STANDARD
