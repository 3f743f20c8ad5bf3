"""Functions that keep nothing, or change nothing, as far as can be known without running them."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dis import get_instructions
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any, Final

from sluiceway.isolation import ATOMS, unchangeable

__all__ = ["changes_nothing", "keeps_nothing"]

_WRITES: Final = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"})
_READS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
# What a function could keep objects with, though it is built in.
_REACHING: Final = frozenset({"globals", "locals", "vars", "setattr", "eval", "exec", "__import__"})


# What reads, computes and decides. What is not here is not trusted: newer versions of Python have other names.
_HARMLESS: Final = frozenset(
    {"CACHE", "CALL", "COPY", "NOP", "POP_TOP", "PRECALL", "PUSH_NULL", "RESUME", "SWAP", "TO_BOOL"}
)
_HARMLESS_PREFIXES: Final = (
    *("BINARY_", "BUILD_", "COMPARE_", "CONTAINS_", "FORMAT_", "IS_", "JUMP_", "LOAD_ATTR", "LOAD_CONST"),
    *("LOAD_FAST", "LOAD_GLOBAL", "LOAD_SMALL_INT", "POP_JUMP_", "RETURN_", "STORE_FAST", "UNARY_", "UNPACK_SEQ"),
)
_HARMLESS_CALLS: Final = frozenset({abs, bool, complex, float, int, len, max, min, round, str})


def changes_nothing(function: object) -> bool:
    """Return whether a function cannot change its arguments, or what they hold.

    True for plain functions that read parts of their arguments, compute with them and put results together, with
    calls of a few built-in functions at most. False where it is not known. The operators of the arguments are
    taken to change nothing, as those of Python's own types do.
    """
    if type(function) is not FunctionType or function.__closure__:
        return False
    known = {**vars(builtins), **function.__globals__}
    for instruction in get_instructions(function.__code__):
        name = instruction.opname
        if name not in _HARMLESS and not name.startswith(_HARMLESS_PREFIXES):
            return False
        if name == "BINARY_OP" and instruction.argrepr.endswith("="):  # x += y
            return False
        if name == "LOAD_GLOBAL" and not any(known.get(str(instruction.argval)) is f for f in _HARMLESS_CALLS):
            return False
        if name == "LOAD_ATTR" and "NULL" in instruction.argrepr:  # a method, to be called
            return False
    return True


def keeps_nothing(function: object) -> bool:
    """Return whether a function cannot keep an object from one call to the next.

    True for built-in functions and types, and for plain functions that see nothing but their arguments: no
    closure, and no default and no global variable but what cannot be changed or is again such a function. False
    where it is not known.
    """
    return _keeps_nothing(function, set())


def _keeps_nothing(function: Any, seen: set[int]) -> bool:
    if isinstance(function, type):
        return function in ATOMS or function.__module__ == "builtins"
    if isinstance(function, MethodDescriptorType):  # such as str.lower
        return True
    if isinstance(function, BuiltinFunctionType):
        return function.__self__ in (None, builtins) and function.__name__ not in _REACHING
    if type(function) is not FunctionType or function.__closure__ or function.__dict__:
        return False
    if id(function) in seen:
        return True  # it calls itself
    seen.add(id(function))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    known = {**vars(builtins), **function.__globals__}

    def harmless(name: str) -> bool:
        if name not in known or isinstance(known[name], ModuleType):
            return False  # what a module has can be anything
        found = known[name]
        return _keeps_nothing(found, seen) if callable(found) else unchangeable(found)

    return all(map(unchangeable, defaults)) and _reads_only(function.__code__, harmless)


def _reads_only(code: CodeType, harmless: Callable[[str], bool]) -> bool:
    for instruction in get_instructions(code):
        if instruction.opname in _WRITES:
            return False
        if instruction.opname in _READS and not harmless(str(instruction.argval)):
            return False
    return all(_reads_only(part, harmless) for part in code.co_consts if isinstance(part, CodeType))
