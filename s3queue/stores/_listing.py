"""Listings, page after page, on any store; what no store may do ends here instead of looping."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from s3queue._errors import StoreError
from s3queue.stores._port import Page, Store

__all__ = ["list_pages"]


async def list_pages(store: Store, prefix: str, *, start_after: str | None = None) -> AsyncGenerator[Page, None]:
    """The pages of a listing, empty ones included. Raises `StoreError` if the store goes round in circles."""
    resume: str | None = None
    seen: set[str] = set()
    while True:
        page = await store.list(prefix, start_after=start_after, resume=resume)
        yield page
        if page.next is None:
            return
        if page.next in seen:
            raise StoreError(f"{store.name}: a listing of {prefix!r} gives the same continuation token again and again")
        seen.add(page.next)
        resume = page.next
