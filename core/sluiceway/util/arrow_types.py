"""Arrow types made of other Arrow types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["with_leaves"]


def with_leaves(kind: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a type with others in place of those inside that are no struct, list or map.

    Args:
        kind: the type.
        leaf: returns what stands in place of such a type, or the type itself.
    """

    def of(field: Any) -> Any:
        return field.with_type(with_leaves(field.type, leaf))

    if pa.types.is_struct(kind):
        return pa.struct([of(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(of(kind.key_field), of(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(of(kind.value_field), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(of(kind.value_field))
    return pa.large_list(of(kind.value_field)) if pa.types.is_large_list(kind) else leaf(kind)
