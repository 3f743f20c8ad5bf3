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
from sluiceway.operators.deadletters import DeadLetters, dead_letter_output
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

    A step that skips records has its call in a ``try``, which costs nothing until something is raised. Of what a
    flat_map has returned nothing goes on before all of it is there: of a record that is skipped, nothing does.
    """

    def __init__(self, steps: Sequence[Step], skipping: Sequence[bool], *, stamped: bool) -> None:
        args = "".join(f", f{i}" for i in range(len(steps)))
        args += "".join(f", take{i}" for i, skips in enumerate(skipping) if skips)
        self.lines = [f"def loop(values, timestamps, out, stamps{args}):"]
        self._timestamp = "timestamp" if stamped else "None"
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
            skips = skipping[i]
            if isinstance(step, FilterStep):
                self._call(depth, skips, (i, value), f"if not f{i}({value}): continue")
                continue
            if isinstance(step, MapStep):
                if i == last:
                    self._call(depth, skips, (i, value), f"out.append(f{i}({value}))")
                    break
                self._call(depth, skips, (i, value), f"{made} = f{i}({value})")
            else:
                called = f"r{i} = f{i}({value})"
                if i == last:
                    if skips:
                        self._add(depth, "before = len(out)")
                    self._call(depth, skips, (i, value), called, f"out.extend(r{i})", undo="del out[before:]")
                    stamp = "stamps.extend([timestamp] * (len(out) - len(stamps)))"
                    break
                whole = [f"if type(r{i}) is not list: r{i} = list(r{i})"] if skips else []
                self._call(depth, skips, (i, value), called, *whole)
                self._add(depth, f"for {made} in r{i}:", (i, value))
                depth += 1
            value = made
        else:
            self._add(depth, f"out.append({value})")
        if stamped:
            self._add(depth, stamp)

    def _call(self, depth: int, skips: bool, mark: tuple[int, str], *texts: str, undo: str = "") -> None:
        if skips:
            self._add(depth, "try:")
        for text in texts:
            self._add(depth + skips, text, mark)
        if skips:
            index, value = mark
            self._add(depth, "except Exception as error:")
            if undo:
                self._add(depth + 1, undo)
            self._add(depth + 1, f"if not take{index}(error, {value}, {self._timestamp}): raise", mark)
            self._add(depth + 1, "continue")

    def _add(self, depth: int, text: str, mark: tuple[int, str] | None = None) -> None:
        self.lines.append("    " * depth + text)
        if mark is not None:
            self.at_line[len(self.lines)] = mark

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def generate(
    steps: Sequence[Step], names: Sequence[str], skipping: Sequence[bool] | None = None, *, stamped: bool
) -> Callable[..., None]:
    """Compile the loop over ``steps``.

    Args:
        steps: map, filter and flat_map steps, at most :data:`MAX_FLAT_MAPS` of the last.
        names: what the steps are called, for messages.
        skipping: which of them skip records on which their function raises; None: none.
        stamped: whether batches have timestamps.

    Returns:
        ``loop(values, timestamps, out, stamps, *functions)``, which adds to the lists ``out`` and ``stamps``.
        After the functions come, for the steps that skip records, what takes these.
    """
    source = _Loop(steps, skipping or [False] * len(steps), stamped=stamped)
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
        self._dead = [DeadLetters(c, dead_letter_output(c.node, contexts[-1].node)) for c in contexts]
        self._skipping = [dead.skipping for dead in self._dead]
        takers = [dead.take for dead in self._dead if dead.skipping]
        self._functions = [*(_callable(step) for step in steps), *takers]
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
                self._plain = generate(self._steps, self._names, self._skipping, stamped=False)
            self._plain(batch.values, None, out, None, *self._functions)
            if out:
                self.output.emit(Batch(out))
        else:
            if self._stamped is None:
                self._stamped = generate(self._steps, self._names, self._skipping, stamped=True)
            stamps: list[int] = []
            self._stamped(batch.values, batch.timestamps, out, stamps, *self._functions)
            if out:
                self.output.emit(Batch(out, stamps))
        for dead in self._dead:
            dead.give(self.output)

    def close(self) -> None:
        """Close what was opened."""
        self._opened.close()


def _callable(step: Step) -> Callable[[Any], Any]:
    function: Any = step.function
    called: Callable[[Any], Any] = (
        getattr(function, _METHODS[type(step)]) if isinstance(function, Function) else function
    )
    return called
