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
from sluiceway.steps import FilterStep, FlatMapStep, InspectStep, MapStep, Step

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
        self.at_line: dict[int, _Call] = {}
        self._skipping = skipping
        self._guarded = guarded
        self._lazy = lazy
        self._timestamp = "timestamp" if stamped else "None"
        self._last = len(steps) - 1
        self._depth = 1
        self._value = "v0"  # variable of the value that the next step is given
        self._held = 1  # holders of the value: its variable, and a batch or list that has it
        self._nested: list[_Call] = []  # calls of maps that are not written yet, innermost first
        self._is_out = False  # whether the value is in ``out``

        self._add("for v0, timestamp in zip(values, timestamps):" if stamped else "for v0 in values:")
        self._depth += 1
        for i, step in enumerate(steps):
            if isinstance(step, FilterStep):
                self._filter(i, step)
            elif isinstance(step, MapStep):
                self._map(i, step)
            elif i == self._last:
                self._extend_out(i)
            else:
                self._flat_map(i)
        if not self._is_out:
            self._append_to_out()
        if stamped:
            self._stamp(steps)

    # ---- steps ------------------------------------------------------------------------------------------------

    def _filter(self, i: int, step: FilterStep) -> None:
        self._write_nested()
        call, called = (i, self._value), f"f{i}({self._value})"
        self._call(call, called if isinstance(step, InspectStep) else f"if not {called}: continue")
        if self._guarded[i]:
            self._isolate(call, self._value, str(self._held))

    def _map(self, i: int, step: MapStep) -> None:
        value, made = self._value, f"v{i + 1}"
        if not (self._skipping[i] or self._guarded[i]):
            # A call that needs no line around it waits for the next one, of which it becomes the argument.
            if len(self._nested) == _MAX_NESTED or argument_of(called_function(step)) is None:
                self._write_nested()
            self._nested.append((i, None if self._nested else value))
        else:
            self._write_nested()
            if i == self._last and not self._guarded[i]:
                self._call((i, value), f"out.append(f{i}({value}))")
                self._is_out = True
                return
            self._call((i, value), f"{made} = f{i}({value})")
            if self._guarded[i]:
                self._isolate((i, value), made, f"{self._held + 1} if {made} is {value} else 0")
        self._value, self._held = made, 0

    def _flat_map(self, i: int) -> None:
        """Write a loop over the results, in which the next steps are."""
        self._write_nested()
        call, made, guarded = (i, self._value), f"v{i + 1}", self._guarded[i]
        listed = "isolated_list" if guarded else "list"
        whole = [f"if type(r{i}) is not list: r{i} = {listed}(r{i})"] if self._skipping[i] else []
        self._call(call, f"r{i} = f{i}({self._value})", *whole)
        if guarded:
            self._add(f"h{i} = holders_in(r{i})")
        self._add(f"for {made} in r{i}:", call)
        self._depth += 1
        if guarded:
            self._isolate(call, made, f"h{i}")
        self._value, self._held = made, 0

    def _extend_out(self, i: int) -> None:
        """Write the flat_map that comes last, whose results need no loop."""
        self._write_nested()
        if self._skipping[i]:
            self._add("before = len(out)")
        extended = f"extend(out, r{i})" if self._guarded[i] else f"out.extend(r{i})"
        if not (self._lazy or self._guarded[i]):
            extended += f" if type(r{i}) is list or type(r{i}) in at_once else extend(out, r{i})"
        self._call((i, self._value), f"r{i} = f{i}({self._value})", extended, undo="del out[before:]")
        self._is_out = True

    def _append_to_out(self) -> None:
        if self._nested:
            self._write_calls("out.append(", ")")
        else:
            self._add(f"out.append({self._value})")

    def _stamp(self, steps: Sequence[Step]) -> None:
        """Write the timestamps of the results."""
        if all(isinstance(step, MapStep | InspectStep) for step in steps) and not any(self._skipping):
            # One result for each record, so that the timestamps are those of the batch.
            self._depth = 1
            self._add("stamps += timestamps")
        elif isinstance(steps[-1], FlatMapStep):
            self._add("stamps.extend([timestamp] * (len(out) - len(stamps)))")
        else:
            self._add("stamps.append(timestamp)")

    # ---- lines ------------------------------------------------------------------------------------------------

    def _write_nested(self) -> None:
        """Write the calls that wait, so that the value is in its variable."""
        if self._nested:
            self._write_calls(f"{self._value} = ")

    def _write_calls(self, before: str, after: str = "") -> None:
        """Write ``before f2(f1(f0(value))) after``, with each call in a line of its own."""
        (first, value), *others = self._nested
        for i, _ in reversed(others):
            self._add(f"{before}f{i}(", (i, None))
            before = ""
        self._add(f"{before}f{first}({value}" + ")" * len(self._nested) + after, (first, value))
        self._nested.clear()

    def _call(self, call: _Call, *texts: str, undo: str = "") -> None:
        """Write a call of a step, in a ``try`` if the step skips records."""
        index, value = call
        skips = self._skipping[index]
        if skips:
            self._add("try:")
            self._depth += 1
        for text in texts:
            self._add(text, call)
        if skips:
            self._depth -= 1
            self._add("except Exception as error:")
            self._depth += 1
            if undo:
                self._add(undo)
            self._add(f"if not take{index}(error, {value}, {self._timestamp}): raise", call)
            self._add("continue")
            self._depth -= 1

    def _isolate(self, call: _Call, value: str, holders: str) -> None:
        self._add(f"if type({value}) not in atoms: {value} = isolate({value}, {holders})", call)

    def _add(self, text: str, call: _Call | None = None) -> None:
        self.lines.append("    " * self._depth + text)
        if call is not None:
            self.at_line[len(self.lines)] = call

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
