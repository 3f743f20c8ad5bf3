"""Memory that two processes have mapped."""

from __future__ import annotations

import mmap
from collections.abc import Callable

__all__ = ["Memory"]


class Memory:
    """Mapped file of segments. It is unmapped only when there is no view of any of them."""

    def __init__(self, fd: int, count: int, size: int, *, writable: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, count * size, prot=access)
        self._whole = memoryview(self._map)
        self._segments: list[memoryview] = []
        self._lent = 0
        self._closed = False
        self._then: Callable[[], None] | None = None
        self._count = count
        self._size = size

    @property
    def lent(self) -> int:
        """Number of views that were not given back."""
        return self._lent

    def segment(self, index: int, size: int) -> memoryview:
        """Return a segment, valid as long as the memory is mapped."""
        view = self._whole[index * self._size : index * self._size + size]
        self._segments.append(view)
        return view

    def lend(self, index: int, size: int) -> memoryview:
        """Return a view of the beginning of a segment, which must be given back."""
        # Both numbers come from the peer.
        if index >= self._count or size > self._size:
            raise ValueError(f"a payload of {size} bytes in segment {index}")
        self._lent += 1
        return self._whole[index * self._size : index * self._size + size]

    def give_back(self, view: memoryview) -> None:
        """Release a view."""
        view.release()
        self._lent -= 1
        if self._closed and not self._lent:
            self._unmap()

    def close(self, then: Callable[[], None] | None = None) -> None:
        """Unmap it, at once or with the last view; ``then`` is called after that."""
        self._closed = True
        self._then = then
        # mmap refuses to close while a view of it exists.
        for view in self._segments:
            view.release()
        self._segments.clear()
        if not self._lent:
            self._unmap()

    def _unmap(self) -> None:
        self._whole.release()
        self._map.close()
        if self._then is not None:
            self._then()
