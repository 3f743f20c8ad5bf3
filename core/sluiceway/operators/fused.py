"""Record-wise steps fused into one generated loop, so that a step costs the call of its function.

The loop has one line per step and keeps each intermediate value in a variable of its own. When a function
raises, the line number says which step it was, and the variables say what the record was.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.faults import MISSING, Fault, register_loop
from sluiceway.functions import Function
from sluiceway.isolation import ATOMS, extend_isolated, isolated, separated, unchangeable_type
from sluiceway.operators.base import Operator, OperatorContext
from sluiceway.operators.closed import keeps_nothing
from sluiceway.operators.deadletters import DeadLetters, dead_letter_output
from sluiceway.operators.opened import Opened
from sluiceway.steps import FilterStep, FlatMapStep, MapStep, Step

__all__ = ["MAX_FLAT_MAPS", "FusedOperator", "generate"]

MAX_FLAT_MAPS = 15
"""Python nests at most 20 loops in one function."""

_FIRST_PART: Final = 64

_METHODS: dict[type[Step], str] = {MapStep: "map", FlatMapStep: "flat_map", FilterStep: "filter"}


class _Loop:
    """Source text of a loop, and which of its lines belongs to which step and value.

    ``out.append(...)`` is written out because Python makes a special case of it: it costs less than the call
    of a bound ``append``.

    A step whose function may keep what it returns, or passes on, has a line that isolates it: see
    :mod:`sluiceway.isolation`. A flat_map that comes last and keeps nothing has none: the operator looks at what
    came of the whole batch.

    A step that skips records has its call in a ``try``, which costs nothing until something is raised. Of what a
    flat_map has returned nothing goes on before all of it is there: of a record that is skipped, nothing does.
    """

    def __init__(
        self, steps: Sequence[Step], skipping: Sequence[bool], guarded: Sequence[bool], *, stamped: bool
    ) -> None:
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
        held = 1  # places besides its variable that have the value: the batch, or what a flat_map has returned
        for i, step in enumerate(steps):
            made = f"v{i + 1}"
            skips = skipping[i]
            if isinstance(step, FilterStep):
                self._call(depth, skips, (i, value), f"if not f{i}({value}): continue")
                if guarded[i]:
                    self._isolate(depth, (i, value), value, str(held))
                continue
            if isinstance(step, MapStep):
                if i == last and not guarded[i]:
                    self._call(depth, skips, (i, value), f"out.append(f{i}({value}))")
                    break
                self._call(depth, skips, (i, value), f"{made} = f{i}({value})")
                if guarded[i]:
                    self._isolate(depth, (i, value), made, f"{held + 1} if {made} is {value} else 0")
                held = 0
            else:
                called = f"r{i} = f{i}({value})"
                if i == last:
                    if skips:
                        self._add(depth, "before = len(out)")
                    extended = f"extend(out, r{i})" if guarded[i] else f"out.extend(r{i})"
                    self._call(depth, skips, (i, value), called, extended, undo="del out[before:]")
                    stamp = "stamps.extend([timestamp] * (len(out) - len(stamps)))"
                    break
                whole = [f"if type(r{i}) is not list: r{i} = list(r{i})"] if skips else []
                self._call(depth, skips, (i, value), called, *whole)
                self._add(depth, f"for {made} in r{i}:", (i, value))
                depth += 1
                if guarded[i]:
                    self._isolate(depth, (i, value), made, f"int(type(r{i}) is list)")
                held = 0
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

    def _isolate(self, depth: int, mark: tuple[int, str], value: str, holders: str) -> None:
        self._add(depth, f"if type({value}) not in atoms: {value} = isolate({value}, {holders})", mark)

    def _add(self, depth: int, text: str, mark: tuple[int, str] | None = None) -> None:
        self.lines.append("    " * depth + text)
        if mark is not None:
            self.at_line[len(self.lines)] = mark

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def generate(
    steps: Sequence[Step],
    names: Sequence[str],
    skipping: Sequence[bool] | None = None,
    guarded: Sequence[bool] | None = None,
    *,
    stamped: bool,
) -> Callable[..., None]:
    """Compile the loop over ``steps``.

    Args:
        steps: map, filter and flat_map steps, at most :data:`MAX_FLAT_MAPS` of the last.
        names: what the steps are called, for messages.
        skipping: which of them skip records on which their function raises; None: none.
        guarded: whose results are isolated; None: nobody's.
        stamped: whether batches have timestamps.

    Returns:
        ``loop(values, timestamps, out, stamps, *functions)``, which adds to the lists ``out`` and ``stamps``.
        After the functions come, for the steps that skip records, what takes these.
    """
    none = [False] * len(steps)
    source = _Loop(steps, skipping or none, guarded or none, stamped=stamped)
    filename = f"<sluiceway: {' -> '.join(names)}{' with timestamps' if stamped else ''}>"
    # A debugger that steps into the loop is shown its text.
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    module = compile(source.text, filename, "exec")
    scope: dict[str, Any] = {"atoms": ATOMS, "extend": extend_isolated, "isolate": isolated}
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
        self.trusts = not self.shares and unchangeable_type(contexts[-1].node.output_type)
        self._separates = False
        self._guard()
        self._multiplies = any(isinstance(step, FlatMapStep) for step in steps)
        # So many records are processed at a time. Before the first it is not known how many come of one.
        self._part = _FIRST_PART if self._multiplies else sys.maxsize

    def _guard(self) -> None:
        """Find out which steps' results are to be isolated."""
        keeps = [not self.shares and not keeps_nothing(step.function) for step in self._steps]
        last = len(self._steps) - 1
        ends_in_many = isinstance(self._steps[last], FlatMapStep)
        self._guarded = [
            # Results of one call may share what they are made of, too.
            keep or (not self.shares and i < last and isinstance(step, FlatMapStep))
            for i, (keep, step) in enumerate(zip(keeps, self._steps, strict=True))
        ]
        if self.trusts:
            self._guarded[last] = False
        self._separates = ends_in_many and not (self.shares or self.trusts or self._guarded[last])
        self._plain = self._stamped = None

    def distrust(self) -> None:
        """Isolate records from now on."""
        super().distrust()
        self._guard()

    @property
    def contexts(self) -> Sequence[OperatorContext]:
        """Those of all steps in the loop."""
        return self._contexts

    def open(self) -> None:
        """Open the functions, last step first."""
        for context in reversed(self._contexts):
            self._opened.open(context.node.step.function, context)

    def process(self, batch: Batch[Any]) -> None:
        """Run the loop over the batch, a part at a time where many records come of each."""
        values, stamps, part = batch.values, batch.timestamps, self._part
        if len(values) <= part:
            self._run(batch)
            return
        for start in range(0, len(values), part):
            end = start + part
            self._run(Batch(values[start:end], None if stamps is None else stamps[start:end]))

    def _run(self, batch: Batch[Any]) -> None:
        out: list[Any] = []
        if batch.timestamps is None:
            if self._plain is None:
                self._plain = generate(self._steps, self._names, self._skipping, self._guarded, stamped=False)
            self._plain(batch.values, None, out, None, *self._functions)
            if out:
                self.output.emit(Batch(separated(out) if self._separates else out))
        else:
            if self._stamped is None:
                self._stamped = generate(self._steps, self._names, self._skipping, self._guarded, stamped=True)
            stamps: list[int] = []
            self._stamped(batch.values, batch.timestamps, out, stamps, *self._functions)
            if out:
                self.output.emit(Batch(separated(out) if self._separates else out, stamps))
        for dead in self._dead:
            dead.give(self.output)
        if self._multiplies:
            # A batch that is much larger than others does not stay in the processor's cache from step to step.
            full = self.context.settings.batch_size
            # A little more than a full batch: a smaller one would wait at the output for company, and be copied.
            self._part = max(1, min(full, len(batch.values) * full * 9 // (8 * max(1, len(out))) + 1))

    def close(self) -> None:
        """Close what was opened."""
        self._opened.close()


def _callable(step: Step) -> Callable[[Any], Any]:
    function: Any = step.function
    called: Callable[[Any], Any] = (
        getattr(function, _METHODS[type(step)]) if isinstance(function, Function) else function
    )
    return called
