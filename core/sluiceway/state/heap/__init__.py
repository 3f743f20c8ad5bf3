"""Keyed state as objects on the heap: what backends that keep it there are made of."""

from sluiceway.state.heap.backend import HeapKeyedBackend
from sluiceway.state.heap.snapshots import Blocks, HeapSnapshot, Layer, Rows

__all__ = ["Blocks", "HeapKeyedBackend", "HeapSnapshot", "Layer", "Rows"]
