"""Pickling of values with classes and functions that cannot be imported, as those of scripts and notebooks."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from inspect import get_annotations, signature
from types import CodeType, new_class
from typing import Any, Final, Generic, get_type_hints
from weakref import WeakKeyDictionary

import cloudpickle
import msgspec

from sluiceway.serializers.program_classes import SKELETONS, ProgramClass
from sluiceway.serializers.type_parameters import reduced_type_parameter
from sluiceway.util.trial_pickling import trial

__all__ = ["ValuePickler", "classes_in", "dumps_by_value", "dumps_with_classes"]

# What msgspec notes on a class that it has looked at: it cannot be pickled, and is made anew where it is missing.
_NOTES: Final = "__msgspec_cache__"


_KEYWORDS: Final = 3
"""Place of what the class's namespace begins with, among the arguments of the function that makes a class."""

_MEMBERS: Final = 3
"""Place of the members among the arguments of the function that makes an enum."""

_STRUCT: Final = type(msgspec.Struct)
"""Metaclass of structs."""

_TYPED_DICT: Final = "_TypedDictMeta"
"""Name of the metaclass of TypedDicts, in ``typing`` and in ``typing_extensions``."""
_OF_TYPED_DICT: Final = (
    "__module__",
    "__qualname__",
    "__doc__",
    "__total__",
    "__required_keys__",
    "__optional_keys__",
    "__readonly_keys__",
    "__mutable_keys__",
)


class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler of cloudpickle that takes TypedDicts, structs, type aliases and classes msgspec has looked at.

    Code keeps the names of its files, and a class inside another its qualified name.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Leave out what msgspec has noted on a class; keep the mark of fields without a default what it is."""
        if obj is dataclasses.MISSING:
            return "MISSING"  # by its name: a copy would be a default like any other
        if isinstance(obj, CodeType):
            # From 3.1.3 on, cloudpickle writes another name, and tracebacks and stack samples name no file.
            make, arguments = self.dispatch_table[CodeType](obj)[:2]
            return _code_of_file, (obj.co_filename, make, arguments)
        if type(obj) is cached_property:
            return _cached_property, (obj.func, obj.attrname)  # has a lock before Python 3.12
        if (parameter := reduced_type_parameter(obj)) is not None:
            return parameter
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and _NOTES in obj.__dict__ and isinstance(reduced, tuple) and len(reduced) > 2:
            attributes = reduced[2][0]
            attributes.pop(_NOTES, None)
        if isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0].__name__ == SKELETONS[0]:
            # Else it would be its name alone: classes inside others would hash to other key groups elsewhere.
            reduced[1][_KEYWORDS].setdefault("__qualname__", obj.__qualname__)
            # Else instances would have a __dict__ elsewhere, and not fit into this class when they come back.
            if "__slots__" in obj.__dict__ and not _has_slots_by_itself(obj):
                reduced[1][_KEYWORDS].setdefault("__slots__", obj.__dict__["__slots__"])
            if isinstance(obj, _STRUCT):
                return _reduced_struct(obj, reduced)
            hooked = _wants_keywords(super(obj, obj).__init_subclass__)  # type: ignore[arg-type]
            if hooked or _made_with_keywords(type(obj)):
                make, (metaclass, *rest), *state = reduced
                return make, (_Unhooked(metaclass), *rest), *state
        if isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0].__name__ == SKELETONS[1]:
            # Aliases and named combinations of flags are no members for cloudpickle, and cannot be set later.
            attributes, members = reduced[2][0], reduced[1][_MEMBERS]
            members.clear()
            for name, member in obj.__members__.items():  # type: ignore[attr-defined]
                members[name] = member.value
                attributes.pop(name, None)
        if isinstance(reduced, tuple) and type(obj).__name__ == _TYPED_DICT:
            return _reduced_typed_dict(obj)
        return reduced


def _has_slots_by_itself(cls: type) -> bool:
    """Return whether whatever makes the class anew also makes its slots, and takes none: NamedTuples, structs."""
    bases = cls.__dict__.get("__orig_bases__", ())
    of_tuple = any(getattr(base, "__name__", "") == "NamedTuple" for base in bases)
    return of_tuple or isinstance(cls, _STRUCT)


def _reduced_struct(cls: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Reduce a struct, which needs its fields and options when it is made, and not later as other classes."""
    make, (metaclass, name, bases, keywords, *rest), *state = reduced
    fields, config = cls.__struct_fields__, cls.__struct_config__
    options = {option: getattr(config, option) for option in dir(config) if not option.startswith("_")}
    annotations = get_annotations(cls)
    own = [field for field in fields if field in annotations]
    options["rename"] = dict(zip(fields, cls.__struct_encode_fields__, strict=True))
    options["kw_only"] = any(field not in cls.__match_args__ for field in own)
    body = {**keywords, "__annotations__": annotations}
    factories = {}
    defaults = cls.__struct_defaults__  # of the last fields
    for field, default in zip(fields[len(fields) - len(defaults) :], defaults, strict=True):
        if field in annotations and default is not msgspec.NODEFAULT:
            if type(default).__name__ == "Factory":
                factories[field] = default.factory
            else:
                body[field] = default
    if hasattr(cls, "__post_init__"):
        body["__post_init__"] = _post_init
    return make, (_StructOf(metaclass, options, factories), name, bases, body, *rest), *state


class _StructOf:
    """Metaclass of a struct with its options, and with defaults that are no part of the class's namespace.

    Args:
        metaclass: metaclass of the struct.
        options: options of the struct.
        factories: by field, the function that makes its default.
    """

    def __init__(self, metaclass: type, options: dict[str, Any], factories: dict[str, Any]) -> None:
        self._metaclass = metaclass
        self._options = options
        self._factories = factories

    def __call__(self, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        made = {field: msgspec.field(default_factory=factory) for field, factory in self._factories.items()}
        return self._metaclass(name, bases, {**body, **made}, **self._options)


def _post_init(self: Any) -> None:
    """Call the method of the class; a struct takes it when it is made, before it has methods."""
    type(self).__post_init__(self)


def _made_with_keywords(metaclass: Any) -> bool:
    """Return whether a metaclass cannot make a class without keywords."""
    arguments: tuple[object, ...] = (metaclass, "", (), {})
    return any(_wants_keywords(make, *arguments) for make in (metaclass.__new__, metaclass.__init__))


def _wants_keywords(hook: Callable[..., Any], *arguments: object) -> bool:
    """Return whether a class cannot be made with this hook without keywords, which no class keeps."""
    try:
        signature(hook).bind(*arguments)
    except TypeError:
        return True
    except ValueError:  # written in C
        pass
    return False


class _Unhooked:
    """Metaclass of a class whose bases or metaclass want keywords: it is made without them and their hooks.

    What they have made of the keywords is among the attributes of the class, which are set later.

    Args:
        metaclass: metaclass of the class.
    """

    def __init__(self, metaclass: type) -> None:
        self._metaclass = metaclass

    def __call__(self, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        hook = "__init_subclass__"
        owners = {owner for base in bases for owner in base.__mro__ if hook in vars(owner)}
        hooks = {owner: vars(owner)[hook] for owner in owners if _wants_keywords(getattr(owner, hook))}
        try:
            for owner in hooks:
                type.__setattr__(owner, hook, _NO_HOOK)
            if not _made_with_keywords(self._metaclass):
                return self._metaclass(name, bases, body)
            maker = next(base for base in self._metaclass.__mro__ if not _made_with_keywords(base))
            return maker.__new__(self._metaclass, name, bases, body)
        finally:
            for owner, original in hooks.items():
                type.__setattr__(owner, hook, original)


_NO_HOOK: Final = classmethod(lambda cls: None)


def _reduced_typed_dict(cls: Any) -> tuple[Any, ...]:
    """Reduce a TypedDict, which cannot be made as cloudpickle makes classes: ``dict`` is no base that it accepts.

    Hints that are texts are resolved, as the module that they are resolved in is not there where they are read.
    """
    try:
        hints = get_type_hints(cls, include_extras=True)
    except Exception:  # a name in it is not there: whoever asks for the hints is told
        hints = dict(cls.__annotations__)
    attributes = {name: getattr(cls, name) for name in _OF_TYPED_DICT if hasattr(cls, name)}
    variables = tuple(getattr(cls, "__parameters__", ()))
    return _make_typed_dict, (type(cls).__module__, cls.__name__, variables, hints, attributes)


def _make_typed_dict(
    module: str, name: str, variables: tuple[Any, ...], hints: dict[str, Any], attributes: dict[str, Any]
) -> Any:
    """Make a TypedDict by ``typing`` or ``typing_extensions``, with the fields of its bases as its own."""
    typed_dict = import_module(module).TypedDict
    bases = (typed_dict, Generic[variables]) if variables else (typed_dict,)  # type: ignore[index]
    made = new_class(name, bases, {}, lambda body: body.update(__annotations__=hints))
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return made


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> cached_property[Any]:
    made = cached_property(function)
    if name is not None:
        made.__set_name__(object, name)  # as a class does when it is made with it
    return made


def dumps_by_value(value: object) -> bytes:
    """Pickle anything. Raises whatever pickle and the value raise."""
    buffer = io.BytesIO()
    ValuePickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


class _Nowhere:
    def write(self, data: Any) -> None: ...


class _ClassPickler(ValuePickler):
    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=5)
        self.found: list[type] = []

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if _is_by_value(obj, reduced):
            self.found.append(obj)
        return reduced


def classes_in(value: object) -> list[type]:
    """Return the classes in a value that are pickled by value, as far as it can be pickled."""
    pickler = _ClassPickler()
    with suppress(Exception), trial():
        pickler.dump(value)
    return pickler.found


def _is_by_value(obj: Any, reduced: Any) -> bool:
    return isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0].__name__ in SKELETONS


class _NamingPickler(ValuePickler):
    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if _is_by_value(obj, reduced):
            return ProgramClass, (obj.__module__, obj.__qualname__, _by_value(obj))
        return reduced


_written: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()
"""By class what it is written as: to make that takes longer than a value of the class."""


def _by_value(cls: type) -> bytes:
    data = _written.get(cls)
    if data is None:
        data = _written[cls] = dumps_by_value(cls)
    return data


def dumps_with_classes(value: object) -> bytes:
    """Pickle a value whose classes are to be found by their names, see :class:`.ProgramClass`.

    Raises whatever pickle and the value raise.
    """
    buffer = io.BytesIO()
    _NamingPickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()
