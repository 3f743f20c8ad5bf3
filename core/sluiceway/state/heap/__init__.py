"""Keyed state as objects on the heap: the parts of backends that store it there."""

from sluiceway.state.heap.backend import HeapKeyedBackend
from sluiceway.state.heap.snapshots import Blocks, HeapSnapshot, Layer, Rows

__all__ = ["Blocks", "HeapKeyedBackend", "HeapSnapshot", "Layer", "Rows"]
