"""Bytes of columns: Arrow's IPC stream format, one record batch to a stream."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["decode", "encode"]

_OPTIONS: Final = pa.ipc.IpcWriteOptions()
"""Options of all streams: without them pyarrow reads the environment for each, half the cost of a small one."""


def encode(data: pa.RecordBatch) -> memoryview:
    """Return the rows as an Arrow IPC stream. Of a slice, only the rows in it are written."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema, options=_OPTIONS) as writer:
        writer.write_batch(data)
    return memoryview(sink.getvalue()).cast("B")


def decode(stream: memoryview | bytes) -> pa.RecordBatch:
    """Return the rows of a stream.

    Args:
        stream: from :func:`encode`. It is copied once, since the memory of a network buffer is used again.

    Raises:
        ValueError: it is no such stream, or it has been cut.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(bytes(stream))) as reader:
            data = reader.read_next_batch()
        data.validate()
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ValueError(f"no Arrow IPC stream of one record batch: {error}") from error
    return data
