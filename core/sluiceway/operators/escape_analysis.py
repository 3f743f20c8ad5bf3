"""Analysis of functions that neither keep nor change their arguments, without running them."""

from __future__ import annotations

import builtins
import re
import sys
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from dis import Instruction, get_instructions
from enum import Enum
from inspect import CO_GENERATOR
from itertools import pairwise
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from sluiceway.isolation import ATOMS, classes_in, is_data, unchangeable
from sluiceway.record_errors import stored_by

__all__ = ["attributes_read", "changes_nothing", "keeps_nothing", "shares_attributes", "yields_unchanged"]

_WRITES: Final = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"})
_READS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
# Built-in functions that could keep objects nevertheless.
_REACHING: Final = frozenset({"globals", "locals", "vars", "getattr", "setattr", "eval", "exec", "__import__"})
# From PUSH_NULL to the load of what is called: Python 3.13 has turned their order round.
_TO_CALLED: Final = 1 if sys.version_info < (3, 13) else -1
# Since Python 3.12, super(cls, value).name is one instruction.
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_SUPER_ATTR")
# Names that lead from an object to its class.
_CLASS_OF: Final = frozenset({"type", "__class__"})


# Class tests that run no user code.
_PLAIN_TESTS: Final = (type.__instancecheck__, ABCMeta.__instancecheck__)

# Instructions that read, compute and decide. Others are not trusted: newer versions of Python have other names.
# PUSH_NULL is not among them: it belongs to a call of what is no global variable, such as a default or a field.
_HARMLESS: Final = frozenset({"CACHE", "CALL", "COPY", "NOP", "POP_TOP", "PRECALL", "RESUME", "SWAP", "TO_BOOL"})
_HARMLESS_PREFIXES: Final = (
    *("BINARY_", "BUILD_", "COMPARE_", "CONTAINS_", "FORMAT_", "IS_", "JUMP_", "LOAD_ATTR", "LOAD_CONST"),
    *("LOAD_FAST", "LOAD_GLOBAL", "LOAD_SMALL_INT", "POP_JUMP_", "RETURN_", "STORE_FAST", "UNARY_", "UNPACK_SEQ"),
)
_CHANGES: Final = ("STORE_ATTR", "STORE_SLICE", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_SLICE", "DELETE_SUBSCR")
_HARMLESS_CALLS: Final = frozenset({abs, bool, complex, float, int, len, max, min, round, str})


_OF_MEMBERS: Final = frozenset({"name", "value"})
# Descriptors of the object's own values, without code in Python.
_OWN_ATTRIBUTES: Final = (
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    type(vars(namedtuple("_", "field"))["field"]),
)


def _methods_of(classes: Iterable[type]) -> frozenset[str]:
    return frozenset(name for cls in classes for name in dir(cls) if not name.startswith("_"))


# Methods are known by their names: the type of an argument is not known before a call.
_READING_METHODS: Final = _methods_of((*ATOMS, tuple, frozenset, MappingProxyType, re.Match, re.Pattern))
_KNOWN_METHODS: Final = _READING_METHODS | _methods_of(
    (list, dict, set, bytearray, deque, defaultdict, OrderedDict)
)


def changes_nothing(function: object) -> bool:
    """Return whether a function cannot change its arguments, or what they hold.

    True for plain functions that read parts of their arguments, compute with them and build results, with
    calls of a few built-in functions at most. False if not known. The operators of the arguments are
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
        if _is_method(instruction):
            return False
    return True


def _is_method(instruction: Instruction) -> bool:
    """Return whether an instruction loads a method that is about to be called."""
    opname = instruction.opname
    return opname == "LOAD_METHOD" or (opname in _ATTRIBUTES and "NULL" in instruction.argrepr)


def keeps_nothing(function: object) -> bool:
    """Return whether a function cannot keep an object from one call to the next.

    True for built-in functions and types, for data classes and named tuples without code of their own, and for
    plain functions that refer only to their arguments: no closure, no default except data that cannot be changed,
    no global variable except such data and calls of other such functions, and no call of what an argument holds.
    A global class may be called, or be tested for with ``isinstance``. The same for a method that does not refer
    to its object. Methods may be called that have the names of those of Python's own types; attributes of an
    argument are taken to be its own: see :func:`shares_attributes`. False if not known.
    """
    return _keeps_nothing(function, attributes_read(function), set())


def yields_unchanged(function: object) -> bool:
    """Return whether what a function that keeps nothing returns can be iterated over before results are compared.

    True if it returns an iterator of its own that changes nothing between two results, such as a generator
    expression. False if not known.
    """
    if type(function) is not FunctionType:
        return False
    codes = list(_codes_of(function, set()))
    return any(code.co_flags & CO_GENERATOR for code in codes) and not any(map(_changes_something, codes))


def attributes_read(function: object) -> frozenset[str]:
    """Return the names of the attributes that a plain function or method reads, of whatever object."""
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is not FunctionType:
        return frozenset()
    return frozenset(
        str(instruction.argval)
        for code in _codes_of(function, set())
        for instruction in get_instructions(code)
        if instruction.opname in _ATTRIBUTES and not _is_method(instruction)
    )


def shares_attributes(cls: type, names: Iterable[str]) -> bool:
    """Return whether one of the attributes of a class may give an object that others have, too.

    True for a value of the class itself that can be changed, for one of an enumeration's member, and for what code
    computes, such as a property.
    """
    members = list(map(vars, cls)) if issubclass(cls, Enum) else ()
    for name in names:
        found = _of_class(cls, name)
        if name in _OF_MEMBERS and found is vars(Enum)[name]:
            name, found = f"_{name}_", None
        if not (isinstance(found, _OWN_ATTRIBUTES) or unchangeable(found)):
            return True
        if not all(unchangeable(member.get(name)) for member in members):
            return True
    return False


def _of_class(cls: type, name: str) -> Any:
    """Return what a class or a base has under a name, without calling a descriptor; None if there is nothing."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _codes_of(function: FunctionType, seen: set[CodeType]) -> Iterator[CodeType]:
    """Iterate over the code of a function, and of the global functions that it refers to."""
    left = [function.__code__]
    while left:
        code = left.pop()
        if code in seen:
            continue
        seen.add(code)
        yield code
        left += (part for part in code.co_consts if isinstance(part, CodeType))
        for name in code.co_names:
            other = function.__globals__.get(name)
            if type(other) is FunctionType:
                yield from _codes_of(other, seen)


def _changes_something(code: CodeType) -> bool:
    for instruction in get_instructions(code):
        name = instruction.opname
        if name.startswith(_CHANGES) or (name == "BINARY_OP" and instruction.argrepr.endswith("=")):
            return True
        # Also a method that is called by another name, or by map(): add = row.append.
        is_known = name in _ATTRIBUTES and instruction.argval in _KNOWN_METHODS
        if (is_known or _is_method(instruction)) and instruction.argval not in _READING_METHODS:
            return True
    return False


def _keeps_nothing(function: Any, names: frozenset[str], seen: set[int]) -> bool:
    """Return whether a function keeps nothing that is called by one that reads attributes of these names."""
    if isinstance(function, type):
        return function in ATOMS or function.__module__ == "builtins" or _constructs_only(function, names, seen)
    if isinstance(function, MethodDescriptorType):  # such as str.lower
        return True
    if isinstance(function, BuiltinFunctionType):
        if isinstance(function.__self__, type):  # such as tuple.__new__
            return function.__self__.__module__ == "builtins"
        # By identity: an array of numpy compares its elements.
        own = function.__self__ is None or function.__self__ is builtins
        return own and function.__name__ not in _REACHING
    if type(function) is MethodType:  # of an object that it does not refer to, which could keep something
        plain = function.__func__
        return (
            type(plain) is FunctionType and not _uses_self(plain.__code__) and _keeps_nothing(plain, names, seen)
        )
    # A closure or an attribute of the function could keep an object.
    if type(function) is not FunctionType or function.__closure__ or function.__dict__:
        return False
    if id(function) in seen:
        return True  # it calls itself
    seen.add(id(function))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    known = {**vars(builtins), **function.__globals__}
    return all(map(is_data, defaults)) and _reads_only(function.__code__, known, names, seen)


def _uses_self(code: CodeType) -> bool:
    name = "".join(code.co_varnames[:1])
    loaded = (instruction.argval for instruction in get_instructions(code))
    # Newer versions of Python load two variables by one instruction.
    return any(name == found or (isinstance(found, tuple) and name in found) for found in loaded)


def _constructs_only(cls: type, names: frozenset[str], seen: set[int]) -> bool:
    """Return whether calling a class runs only Python's own code, and what is read of its objects is their own."""
    # A metaclass with a __call__ of its own runs first.
    if type(cls).__call__ is not type.__call__ or shares_attributes(cls, names):
        return False
    new, init = cls.__new__, cls.__init__  # type: ignore[misc]
    if not _keeps_nothing(new, names, seen):
        return False
    if isinstance(init, WrapperDescriptorType):
        return init.__objclass__.__module__ == "builtins"
    # dataclasses compiles __init__ from text: any other file name is that of a method of the user's.
    if not is_dataclass(cls) or init.__code__.co_filename != "<string>" or hasattr(cls, "__post_init__"):
        return False
    # The generated __init__ of a frozen class assigns by object.__setattr__, any other one by the class's own.
    plain = cls.__setattr__ is object.__setattr__ or cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return plain and all(
        (field.default is MISSING or unchangeable(field.default))
        and (field.default_factory is MISSING or _keeps_nothing(field.default_factory, names, seen))
        # Assigning to a property, or to another descriptor, calls its setter.
        and not _has_setter(cls, field.name)
        for field in fields(cls)
    )


def _has_setter(cls: type, name: str) -> bool:
    found = _of_class(cls, name)
    return hasattr(type(found), "__set__") and not isinstance(found, MemberDescriptorType)


def _reads_only(code: CodeType, known: Mapping[str, Any], names: frozenset[str], seen: set[int]) -> bool:
    instructions = list(get_instructions(code))
    for i, instruction in enumerate(instructions):
        if instruction.opname in _WRITES:
            return False
        if instruction.opname == "STORE_ATTR" and not _CLASS_OF.isdisjoint(code.co_names):
            return False  # it may be an attribute of the class
        if instruction.opname == "PUSH_NULL" and not _calls_its_own(instructions, i):
            return False
        if _is_method(instruction) and instruction.argval not in _KNOWN_METHODS:
            return False
        if instruction.opname not in _READS:
            continue
        found = known.get(str(instruction.argval), builtins)
        # It is not there, or is set later, or is a module: what a module has can be anything.
        if found is None or isinstance(found, ModuleType):
            return False
        if isinstance(found, type) and found.__module__ != "builtins" and found not in ATOMS:
            # What else is done with a class could reach its attributes, which may be a list.
            # A load with NULL is that of a function about to be called.
            called = "NULL" in instruction.argrepr and _keeps_nothing(found, names, seen)
            tested = type(found).__instancecheck__ in _PLAIN_TESTS and _is_tested_for(instructions, i, known)
            if not called and not tested:
                return False
        elif type(found) is FunctionType and "NULL" not in instruction.argrepr:
            return False  # it is not about to be called: its attributes could keep an object
        elif callable(found):
            if not _keeps_nothing(found, names, seen):
                return False
        elif not is_data(found) or any(shares_attributes(cls, names) for cls in classes_in(found)):
            return False
    return all(_reads_only(part, known, names, seen) for part in code.co_consts if isinstance(part, CodeType))


def _calls_its_own(instructions: Sequence[Instruction], index: int) -> bool:
    """Return whether what is called is a variable that holds a known method, or a function made here.

    Anything else may be a function that the argument holds.
    """
    called = instructions[index + _TO_CALLED]
    if called.opname != "LOAD_FAST":
        return False
    bound = [
        # The second of two variables is set to what lies deeper on the stack.
        before if called.argval == stored_by(stored)[0] else stored
        for before, stored in pairwise(instructions)
        if stored.opname.startswith("STORE_FAST") and called.argval in stored_by(stored)
    ]
    return bool(bound) and all(
        before.opname in ("LOAD_GLOBAL", "MAKE_FUNCTION")
        or (before.opname == "LOAD_ATTR" and before.argval in _KNOWN_METHODS)
        for before in bound
    )


def _is_tested_for(instructions: Sequence[Instruction], index: int, known: Mapping[str, Any]) -> bool:
    """Return whether a loaded class is the second argument of ``isinstance``, or one of a tuple that is."""
    after = index + 1
    while instructions[after].opname == "LOAD_GLOBAL" and "NULL" not in instructions[after].argrepr:
        after += 1
    if instructions[after].opname == "BUILD_TUPLE":
        after += 1
    if instructions[after].opname not in ("PRECALL", "CALL"):
        return False
    # Backwards to the function of this call: each CALL in between belongs to an argument, with a NULL of its own.
    depth = 0
    for instruction in reversed(instructions[:index]):
        if instruction.opname == "CALL":
            depth += 1
        elif "NULL" in instruction.argrepr or instruction.opname in ("LOAD_METHOD", "PUSH_NULL"):
            if depth == 0:
                return instruction.opname == "LOAD_GLOBAL" and known.get(instruction.argval) is isinstance
            depth -= 1
    return False
