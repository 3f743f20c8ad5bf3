"""Generated loops over record-wise steps: source text, compiled code, and the step at each line.

A loop has one line per call. When a function raises, the line number identifies the step; a variable of the
loop, or the frame of the call, holds the record.
"""

from __future__ import annotations

import linecache
from collections import deque
from collections.abc import Callable, Sequence
from dis import get_instructions
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final, TypeAlias

from sluiceway.functions import Function
from sluiceway.isolation import ATOMS, extend_isolated, holders_in, isolated, isolated_list
from sluiceway.record_errors import MISSING, Fault, register_loop, stored_by
from sluiceway.steps import FilterStep, FlatMapStep, MapStep, Step

__all__ = ["MAX_FLAT_MAPS", "argument_of", "called_function", "generate"]

MAX_FLAT_MAPS = 15
"""Python nests at most 20 loops in one function."""

_MAX_NESTED: Final = 50
"""Python's parser takes at most 200 nested parentheses."""
_METHODS: Final[dict[type[Step], str]] = {MapStep: "map", FlatMapStep: "flat_map", FilterStep: "filter"}
# Iterables that are there before they are iterated over.
_AT_ONCE: Final = frozenset(
    {list, tuple, set, frozenset, dict, str, bytes, range, deque, *map(type, ({}.keys(), {}.values(), {}.items()))}
)
_OTHER_CALLS: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_VARARGS | CO_VARKEYWORDS


_Call: TypeAlias = tuple[int, str | None]
"""Index of a step, and the variable that holds its record; None: the function's own argument holds it."""


class _Loop:
    """Source text of a loop, with the step and value of each line.

    ``out.append(...)`` is written out because Python makes a special case of it: it costs less than the call
    of a bound ``append``. What a map returns has no variable where the next map's function names it: then the call
    is an argument of the next call, which saves four lambdas 5 % of their time.

    A comprehension would be faster still by 1 %, but its variables are gone when a function has raised.

    A step whose function may keep what it returns has a line that isolates the result: see
    :mod:`sluiceway.isolation`. A flat_map that comes last and keeps nothing has none: the operator checks the
    results of the whole batch. But what is computed as it is iterated over may have changed until then: it is
    isolated result by result, unless ``lazy`` says that it does not change.

    A step that skips records has its call in a ``try``, which costs nothing until something is raised. Of what a
    flat_map has returned nothing goes on before all of it is there: of a record that is skipped, nothing does.

    Attributes:
        lines: the text.
        at_line: by line, the call in it.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        skipping: Sequence[bool],
        guarded: Sequence[bool],
        *,
        stamped: bool,
        lazy: bool,
    ) -> None:
        args = "".join(f", f{i}" for i in range(len(steps)))
        args += "".join(f", take{i}" for i, skips in enumerate(skipping) if skips)
        self.lines = [f"def loop(values, timestamps, out, stamps{args}):"]
        self._timestamp = "timestamp" if stamped else "None"
        self.at_line: dict[int, _Call] = {}
        self._nested: list[_Call] = []  # calls of maps that are not written yet, innermost first
        depth = 1
        value = "v0"
        if stamped:
            self._add(depth, "for v0, timestamp in zip(values, timestamps):")
        else:
            self._add(depth, "for v0 in values:")
        depth += 1
        stamp = "stamps.append(timestamp)"
        last = len(steps) - 1
        held = 1  # holders of the value: its variable, and a batch or list that has it
        for i, step in enumerate(steps):
            made = f"v{i + 1}"
            skips = skipping[i]
            # A call that needs no line around it waits for the next one, of which it becomes the argument.
            if isinstance(step, MapStep) and not (skips or guarded[i]):
                if self._nested and (
                    len(self._nested) == _MAX_NESTED or argument_of(called_function(step)) is None
                ):
                    self._write_nested(depth, f"v{i} = ")
                self._nested.append((i, None if self._nested else value))
                value = made
                held = 0
                continue
            if self._nested:
                self._write_nested(depth, f"{value} = ")
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
                    if not (lazy or guarded[i]):
                        extended += f" if type(r{i}) is list or type(r{i}) in at_once else extend(out, r{i})"
                    self._call(depth, skips, (i, value), called, extended, undo="del out[before:]")
                    stamp = "stamps.extend([timestamp] * (len(out) - len(stamps)))"
                    break
                listed = "isolated_list" if guarded[i] else "list"
                whole = [f"if type(r{i}) is not list: r{i} = {listed}(r{i})"] if skips else []
                self._call(depth, skips, (i, value), called, *whole)
                if guarded[i]:
                    self._add(depth, f"h{i} = holders_in(r{i})")
                self._add(depth, f"for {made} in r{i}:", (i, value))
                depth += 1
                if guarded[i]:
                    self._isolate(depth, (i, value), made, f"h{i}")
                held = 0
            value = made
        else:
            # The loop was not left by break: the last value is still to be appended.
            if self._nested:
                self._write_nested(depth, "out.append(", ")")
            else:
                self._add(depth, f"out.append({value})")
        # One result for each record, so that the timestamps are those of the batch.
        if stamped and all(isinstance(step, MapStep) for step in steps) and not any(skipping):
            self._add(1, "stamps += timestamps")
        elif stamped:
            self._add(depth, stamp)

    def _write_nested(self, depth: int, before: str, after: str = "") -> None:
        """Write ``before f2(f1(f0(value))) after``, with each call in a line of its own."""
        (first, value), *others = self._nested
        for i, _ in reversed(others):
            self._add(depth, f"{before}f{i}(", (i, None))
            before = ""
        self._add(depth, f"{before}f{first}({value}" + ")" * len(self._nested) + after, (first, value))
        self._nested.clear()

    def _call(self, depth: int, skips: bool, mark: _Call, *texts: str, undo: str = "") -> None:
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

    def _isolate(self, depth: int, mark: _Call, value: str, holders: str) -> None:
        self._add(depth, f"if type({value}) not in atoms: {value} = isolate({value}, {holders})", mark)

    def _add(self, depth: int, text: str, mark: _Call | None = None) -> None:
        self.lines.append("    " * depth + text)
        if mark is not None:
            self.at_line[len(self.lines)] = mark

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def called_function(step: Step) -> Callable[[Any], Any]:
    """Return the callable of a map, filter or flat_map step."""
    function: Any = step.function
    called: Callable[[Any], Any] = (
        getattr(function, _METHODS[type(step)]) if isinstance(function, Function) else function
    )
    return called


def argument_of(function: object) -> str | None:
    """Return the variable in which a plain function of one argument holds it until it returns, or None."""
    given = 0
    if type(function) is MethodType:
        function, given = function.__func__, 1
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    if code.co_argcount != given + 1 or code.co_kwonlyargcount or code.co_flags & _OTHER_CALLS:
        return None
    name = code.co_varnames[given]
    return None if _binds(code, name) else name


def _binds(code: CodeType, name: str) -> bool:
    for instruction in get_instructions(code):
        if name in stored_by(instruction) or ("DELETE" in instruction.opname and name == instruction.argval):
            return True
    return any(isinstance(part, CodeType) and _binds(part, name) for part in code.co_consts)


def generate(
    steps: Sequence[Step],
    names: Sequence[str],
    skipping: Sequence[bool] | None = None,
    guarded: Sequence[bool] | None = None,
    *,
    stamped: bool,
    lazy: bool = True,
) -> Callable[..., None]:
    """Compile the loop over ``steps``.

    Args:
        steps: map, filter and flat_map steps, at most :data:`MAX_FLAT_MAPS` of the last.
        names: names of the steps, for messages.
        skipping: steps that skip records on which their function raises; None: none.
        guarded: steps whose results are isolated; None: none.
        stamped: whether batches have timestamps.
        lazy: whether an iterator that the last step returns may run before its results are isolated.

    Returns:
        ``loop(values, timestamps, out, stamps, *functions)``, which adds to the lists ``out`` and ``stamps``.
        The functions are followed by one receiver of skipped records for each step that skips.
    """
    none = [False] * len(steps)
    source = _Loop(steps, skipping or none, guarded or none, stamped=stamped, lazy=lazy)
    filename = f"<sluiceway: {' -> '.join(names)}{' with timestamps' if stamped else ''}>"
    # Registered for debuggers, which then show the text of the loop. The mtime of None keeps
    # linecache.checkcache() from dropping an entry without a file.
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    module = compile(source.text, filename, "exec")
    scope: dict[str, Any] = {
        "at_once": _AT_ONCE,
        "atoms": ATOMS,
        "extend": extend_isolated,
        "holders_in": holders_in,
        "isolate": isolated,
        "isolated_list": isolated_list,
    }
    exec(module, scope)
    loop: Callable[..., None] = scope["loop"]

    def read(frame: FrameType, line: int, called: FrameType | None) -> Fault:
        names_here = frame.f_locals
        index, value = source.at_line.get(line, (None, "v0"))
        if value is not None:
            record = names_here.get(value, MISSING)
        else:
            record = MISSING if called is None or index is None else _argument(called, steps[index])
        return Fault(
            step=None if index is None else names[index],
            value=record,
            key=MISSING,
            timestamp=names_here.get("timestamp", MISSING),
            returned=MISSING if index is None else names_here.get(f"r{index}", MISSING),
            innermost=False,
        )

    register_loop(loop.__code__, read)
    return loop


def _argument(called: FrameType, step: Step) -> Any:
    """Return the record that a step's function was called with, from the frame of the call."""
    function = called_function(step)
    name = argument_of(function)
    plain = getattr(function, "__func__", function)
    if name is None or called.f_code is not getattr(plain, "__code__", None):
        return MISSING  # the call itself has failed
    return called.f_locals.get(name, MISSING)
