"""Arrow arrays from numpy arrays and back, without pandas.

Where pandas is installed, ``pyarrow.array()``, ``pyarrow.scalar()``, ``Array.to_numpy()`` and kernels that take a
Python value import it when they are first called: 0.3 to 0.5 s of each process. These functions do not.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["array_of", "numpy_of", "zeros_for_nulls"]

_INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NAMES: Final = (*_INTEGERS, "float16", "float32", "float64", "bool")
_TYPES: Final = {np.dtype(name): pa.type_for_alias(name) for name in _NAMES}
_DTYPES: Final = {kind.id: dtype for dtype, kind in _TYPES.items()}
_BOOL: Final = np.dtype(bool)


def array_of(values: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None = None) -> Any:
    """Return a numpy array of integers, floats or bools as an Arrow array, as ``pyarrow.array()`` does.

    It shares the memory of ``values``, and changes with them; bools, and values that are not contiguous, are
    copied. NaN is a value.

    Args:
        values: an array of one dimension.
        mask: bools, True for rows that are null; None: no row is.

    Raises:
        TypeError: the values are of another type, in another byte order, or in more dimensions.
    """
    kind = _TYPES.get(values.dtype)
    if kind is None or values.ndim != 1:
        shape = "x".join(map(str, values.shape))
        raise TypeError(f"array_of() takes one dimension of integers, floats or bools, not {shape} {values.dtype}")
    contiguous: Any = np.ascontiguousarray(values)
    data = _bits(values) if values.dtype == _BOOL else pa.py_buffer(contiguous)
    valid, nulls = None, 0
    if mask is not None and (nulls := int(np.count_nonzero(mask))):
        valid = _bits(~mask)
    return pa.Array.from_buffers(kind, len(values), [valid, data], nulls)


def numpy_of(array: Any) -> np.ndarray[Any, Any]:
    """Return an Arrow array of integers, floats or bools without nulls as a numpy array.

    It is read-only and shares the memory of ``array``; bools, which are bits in Arrow, are copied.

    Raises:
        TypeError: a value is null, or the values are of another type.
    """
    dtype = _DTYPES.get(array.type.id)
    if dtype is None or array.null_count:
        kind = f"{array.type} with {array.null_count} nulls"
        raise TypeError(f"numpy_of() takes integers, floats or bools without nulls, not {kind}")
    size, first = len(array), array.offset
    if not size:  # it may have no buffer
        return np.zeros(0, dtype)
    data = array.buffers()[1]
    if dtype == _BOOL:
        bits = np.frombuffer(data, np.uint8, offset=first // 8)
        return np.unpackbits(bits, count=first % 8 + size, bitorder="little")[first % 8 :].view(bool)
    # Not from_dlpack(), which numpy before 2.1 calls in a way that pyarrow has deprecated.
    found = np.frombuffer(data, dtype, size, first * dtype.itemsize)
    found.flags.writeable = False
    return found


def zeros_for_nulls(array: Any) -> Any:
    """Return an Arrow array of integers, floats or bools with 0 or False in place of nulls."""
    return array.fill_null(_ZEROS[array.type]) if array.null_count else array


def _bits(bools: np.ndarray[Any, Any]) -> Any:
    packed: Any = np.packbits(bools, bitorder="little")
    return pa.py_buffer(packed)


_ZEROS: Final[dict[Any, Any]] = {kind: array_of(np.zeros(1, dtype))[0] for dtype, kind in _TYPES.items()}
