"""Check of a step's records against the type that the program has declared with ``returns()``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sluiceway.errors import DeclaredTypeError
from sluiceway.record_errors import shown
from sluiceway.streamgraph import StreamNode
from sluiceway.types import classes_of, conformity, type_name

__all__ = ["check_of_results"]


def check_of_results(node: StreamNode) -> Callable[[Iterable[Any]], None] | None:
    """Return the check of the values of a batch, which raises DeclaredTypeError; None if no type is declared.

    It tests the classes of the records, so that a batch of one class costs one lookup per record.
    """
    declared = node.output_type
    conforms = conformity(declared, parts=False) if node.type_declared else None
    if conforms is None:
        return None
    classes = classes_of(declared)

    def check(values: Iterable[Any]) -> None:
        if classes.issuperset(map(type, values)):
            return
        for value in values:
            if not conforms(value):
                where = f" ({node.location})" if node.location else ""
                raise DeclaredTypeError(
                    f"step {node.name!r}{where} is declared by returns() to emit {type_name(declared)}, and "
                    f"{shown(value, 100)} of type {type_name(type(value))} was emitted. Correct what the step "
                    "emits, or declare all types of its records"
                )

    return check
