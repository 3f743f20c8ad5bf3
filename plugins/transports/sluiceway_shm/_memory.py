"""Memory that two processes have mapped."""

from __future__ import annotations

import mmap

__all__ = ["Memory"]


class Memory:
    """A mapped file of segments. It can be unmapped only when nobody looks at any of them any more."""

    def __init__(self, fd: int, count: int, size: int, *, writable: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, count * size, prot=access)
        self._whole = memoryview(self._map)
        self._segments: list[memoryview] = []
        self._lent = 0
        self._closed = False
        self._count = count
        self._size = size

    def segment(self, index: int, size: int) -> memoryview:
        """A segment for as long as the memory is there."""
        view = self._whole[index * self._size : index * self._size + size]
        self._segments.append(view)
        return view

    def lend(self, index: int, size: int) -> memoryview:
        """The beginning of a segment, to be given back."""
        if index >= self._count or size > self._size:
            raise ValueError(f"a payload of {size} bytes in segment {index}")
        self._lent += 1
        return self._whole[index * self._size : index * self._size + size]

    def give_back(self, view: memoryview) -> None:
        """One view less."""
        view.release()
        self._lent -= 1
        if self._closed and not self._lent:
            self._unmap()

    def close(self) -> None:
        """Unmap it, at once or with the last view."""
        self._closed = True
        for view in self._segments:
            view.release()
        self._segments.clear()
        if not self._lent:
            self._unmap()

    def _unmap(self) -> None:
        self._whole.release()
        self._map.close()
