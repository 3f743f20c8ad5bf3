"""Cache of live pages: each is made and encoded once per period for all clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sluiceway.util.surrogates import json_bytes

__all__ = ["PageCache", "PageFields"]

_MOST_PAGES: Final = 64
"""Pages that are kept; a stream keeps its own."""


@dataclass(frozen=True, slots=True)
class PageFields:
    """Page whose fields are encoded one by one, so that a stream can compare and join them.

    Attributes:
        fields: JSON by name.
        history: points of the page's history, oldest first, each with its time in ms; None: the page has none.
    """

    fields: dict[str, bytes]
    history: list[list[Any]] | None

    @classmethod
    def of(cls, page: dict[str, Any]) -> PageFields:
        """Encode a page."""
        history = page.pop("history", None)
        return cls({name: json_bytes(value) for name, value in page.items()}, history)

    def whole(self) -> bytes:
        """Return the JSON of the whole page."""
        page: dict[str, Any] = {name: msgspec.Raw(value) for name, value in self.fields.items()}
        if self.history is not None:
            page["history"] = self.history
        return msgspec.json.encode(page)


class PageCache:
    """Pages by name, no older than a period. In the event loop's thread.

    Args:
        period_s: returns the age in seconds from which a page is made again.
    """

    def __init__(self, period_s: Callable[[], float]) -> None:
        self._period_s = period_s
        self._known: dict[Any, tuple[float, PageFields]] = {}
        self._making: dict[Any, asyncio.Task[PageFields]] = {}

    async def get(self, name: Any, make: Callable[[], Awaitable[dict[str, Any]]]) -> PageFields:
        """Return a page; make it unless it is known or being made. Raises what ``make`` raises."""
        at, known = self._known.get(name, (float("-inf"), None))
        if known is not None and time.monotonic() - at < self._period_s():
            return known
        making = self._making.get(name)
        if making is None:
            making = self._making[name] = asyncio.ensure_future(self._make(name, make))
            making.add_done_callback(lambda made: self._made(name, made))
        # A client that goes away cancels its own wait, not the page that others wait for.
        return await asyncio.shield(making)

    def clear(self) -> None:
        """Forget all pages, after a change of what they show."""
        self._known.clear()

    def _made(self, name: Any, making: asyncio.Task[PageFields]) -> None:
        self._making.pop(name, None)
        if not making.cancelled():
            making.exception()  # whoever asked may be gone, and asyncio logs errors that nobody has looked at

    async def _make(self, name: Any, make: Callable[[], Awaitable[dict[str, Any]]]) -> PageFields:
        # The age counts from here: figures are read while the page is made.
        began = time.monotonic()
        page = PageFields.of(await make())
        if len(self._known) >= _MOST_PAGES:
            self._known.clear()
        self._known[name] = began, page
        return page
