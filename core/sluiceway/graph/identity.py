"""Names of steps, and their stable ids where the user gave none."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from sluiceway.graph.transformations import Transformation
from sluiceway.steps import SinkStep, SourceStep, Step

__all__ = ["derive_uids", "function_name", "step_name"]

_LAMBDA = "<lambda>"


def function_name(fn: object) -> str:
    """Return the name of a function or of a function object's class, without its module.

    A lambda is ``<lambda>``, wherever it is: moving code must not change what is derived from it.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None)
    if not isinstance(name, str):
        name = type(fn).__qualname__
    return name.rpartition("<locals>.")[2]


def step_name(step: Step) -> str:
    """Return the default name of a step: its kind, and its function, source or sink where that has a name."""
    if isinstance(step, SourceStep):
        return f"source({step.source.name})"
    if isinstance(step, SinkStep):
        return f"sink({step.sink.name})"
    names = [function_name(fn) for fn in step.functions]
    if all(name.endswith(_LAMBDA) for name in names):
        return step.kind
    return f"{step.kind}({', '.join(names)})"


def _signature(step: Step) -> list[str]:
    """Return what of a step its derived uid depends on: nothing that moving or tuning it would change."""
    if isinstance(step, SourceStep):
        what = type(step.source).__qualname__
    elif isinstance(step, SinkStep):
        what = type(step.sink).__qualname__
    else:
        what = ", ".join(map(function_name, step.functions))
    return [step.kind, what, *("" if key is None else function_name(key) for key in step.keys)]


def derive_uids(order: Sequence[Transformation]) -> dict[Transformation, str]:
    """Return the uid of every transformation: the user's, or one derived from what it does and what it reads.

    A derived uid depends on the kind of the step, the names of its functions and the uids of its inputs, so
    nothing that is not upstream of a step changes its uid. Steps that are alike in all this are distinguished
    by their order in the program.

    Args:
        order: the transformations, inputs before their consumers.
    """
    uids: dict[Transformation, str] = {}
    twins: dict[str, int] = {}
    for t in order:
        if t.uid is not None:
            uids[t] = t.uid
            continue
        parts = _signature(t.step)
        for ref in t.inputs:
            parts += [uids.get(ref.upstream, ""), "" if ref.tag is None else ref.tag.name]
            if ref.port:
                parts.append(f"input {ref.port}")
        digest = _digest(parts)
        nth = twins.get(digest, 0)
        twins[digest] = nth + 1
        uids[t] = digest if nth == 0 else _digest([digest, str(nth)])
    return uids


def _digest(parts: Sequence[str]) -> str:
    # The lengths keep ("ab", "c") and ("a", "bc") apart.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
