"""Record-wise steps fused into one generated loop, so that a step costs the call of its function.

The loop has one line per step and keeps each intermediate value in a variable of its own. When a function
raises, the line number says which step it was, and the variables say what the record was.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from sluiceway.elements import Batch
from sluiceway.faults import MISSING, Fault, register_loop
from sluiceway.functions import Function
from sluiceway.operators.base import Operator, OperatorContext
from sluiceway.operators.opened import Opened
from sluiceway.steps import FilterStep, FlatMapStep, MapStep, Step

__all__ = ["MAX_FLAT_MAPS", "FusedOperator", "generate"]

MAX_FLAT_MAPS = 15
"""Python nests at most 20 loops in one function."""

_METHODS: dict[type[Step], str] = {MapStep: "map", FlatMapStep: "flat_map", FilterStep: "filter"}


class _Loop:
    """Source text of a loop, and which of its lines belongs to which step and value.

    ``out.append(...)`` is written out because Python makes a special case of it: it costs less than the call
    of a bound ``append``.
    """

    def __init__(self, steps: Sequence[Step], *, stamped: bool) -> None:
        args = "".join(f", f{i}" for i in range(len(steps)))
        self.lines = [f"def loop(values, timestamps, out, stamps{args}):"]
        self.at_line: dict[int, tuple[int, str]] = {}
        depth = 1
        value = "v0"
        if stamped:
            self._add(depth, "for v0, timestamp in zip(values, timestamps):")
        else:
            self._add(depth, "for v0 in values:")
        depth += 1
        stamp = "stamps.append(timestamp)"
        last = len(steps) - 1
        for i, step in enumerate(steps):
            made = f"v{i + 1}"
            if isinstance(step, FilterStep):
                self._add(depth, f"if not f{i}({value}): continue", (i, value))
                continue
            if isinstance(step, MapStep):
                if i == last:
                    self._add(depth, f"out.append(f{i}({value}))", (i, value))
                    break
                self._add(depth, f"{made} = f{i}({value})", (i, value))
            else:
                self._add(depth, f"r{i} = f{i}({value})", (i, value))
                if i == last:
                    self._add(depth, f"out.extend(r{i})", (i, value))
                    stamp = "stamps.extend([timestamp] * (len(out) - len(stamps)))"
                    break
                self._add(depth, f"for {made} in r{i}:", (i, value))
                depth += 1
            value = made
        else:
            self._add(depth, f"out.append({value})")
        if stamped:
            self._add(depth, stamp)

    def _add(self, depth: int, text: str, mark: tuple[int, str] | None = None) -> None:
        self.lines.append("    " * depth + text)
        if mark is not None:
            self.at_line[len(self.lines)] = mark

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def generate(steps: Sequence[Step], names: Sequence[str], *, stamped: bool) -> Callable[..., None]:
    """Compile the loop over ``steps``.

    Args:
        steps: map, filter and flat_map steps, at most :data:`MAX_FLAT_MAPS` of the last.
        names: what the steps are called, for messages.
        stamped: whether batches have timestamps.

    Returns:
        ``loop(values, timestamps, out, stamps, *functions)``, which adds to the lists ``out`` and ``stamps``.
    """
    source = _Loop(steps, stamped=stamped)
    filename = f"<sluiceway: {' -> '.join(names)}{' with timestamps' if stamped else ''}>"
    # A debugger that steps into the loop is shown its text.
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    module = compile(source.text, filename, "exec")
    scope: dict[str, Any] = {}
    exec(module, scope)
    loop: Callable[..., None] = scope["loop"]
    code: CodeType = loop.__code__

    def read(frame: FrameType, line: int) -> Fault:
        names_here = frame.f_locals
        index, value = source.at_line.get(line, (None, "v0"))
        return Fault(
            step=None if index is None else names[index],
            value=names_here.get(value, MISSING),
            key=MISSING,
            timestamp=names_here.get("timestamp", MISSING),
            returned=MISSING if index is None else names_here.get(f"r{index}", MISSING),
            innermost=False,
        )

    register_loop(code, read)
    return loop


class FusedOperator(Operator):
    """Runs neighbouring record-wise steps as one.

    Args:
        contexts: one per step, in order.
    """

    def __init__(self, contexts: Sequence[OperatorContext]) -> None:
        super().__init__(contexts[0])
        self._contexts = contexts
        steps = [c.node.step for c in contexts]
        names = [c.node.name for c in contexts]
        self.step_name = names[0] if len(names) == 1 else " -> ".join(names)
        self._steps = steps
        self._functions = [_callable(step) for step in steps]
        self._names = names
        self._opened = Opened()
        self._plain: Callable[..., None] | None = None
        self._stamped: Callable[..., None] | None = None

    @property
    def contexts(self) -> Sequence[OperatorContext]:
        """Those of all steps in the loop."""
        return self._contexts

    def open(self) -> None:
        """Open the functions, last step first."""
        for context in reversed(self._contexts):
            self._opened.open(context.node.step.function, context)

    def process(self, batch: Batch[Any]) -> None:
        """Run the loop over the batch."""
        out: list[Any] = []
        if batch.timestamps is None:
            if self._plain is None:
                self._plain = generate(self._steps, self._names, stamped=False)
            self._plain(batch.values, None, out, None, *self._functions)
            if out:
                self.output.emit(Batch(out))
        else:
            if self._stamped is None:
                self._stamped = generate(self._steps, self._names, stamped=True)
            stamps: list[int] = []
            self._stamped(batch.values, batch.timestamps, out, stamps, *self._functions)
            if out:
                self.output.emit(Batch(out, stamps))

    def close(self) -> None:
        """Close what was opened."""
        self._opened.close()


def _callable(step: Step) -> Callable[[Any], Any]:
    function: Any = step.function
    called: Callable[[Any], Any] = (
        getattr(function, _METHODS[type(step)]) if isinstance(function, Function) else function
    )
    return called
