"""Reading of values that were written when their type was another one.

The schema that was stored with the values makes *plain data* of them first, without the old class:
records are dicts of their fields. Values of today's type are made from that by both schemas, or by a
function of the user.
"""

from __future__ import annotations

import datetime as dt
import io
import numbers
import pickle
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from sluiceway.errors import SerializationError
from sluiceway.serializers.base import PICKLE, Serializer
from sluiceway.serializers.exactness import every_exact
from sluiceway.serializers.msgpack import MsgspecSerializer
from sluiceway.serializers.schemas import Schema, describe, shown, without_names

__all__ = ["Form", "IncompatibleSchemaError", "PlainReader", "reader_of", "schema_of"]

Make = Callable[[Any], Any]
_Taken = tuple[str, str | None, Make]
"""Field of today: its name as written, the field of old that it is made of, and how."""

_PICKLED: Final = b"\xc1"
_MIGRATE: Final = "give the descriptor migrate=, a function that makes a new value of an old one"
_decode: Final = msgspec.msgpack.Decoder().decode
_NATIVE: Final = (bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, UUID)
_AS_TEXT: Final[Mapping[str, type]] = {
    "date": dt.date,
    "datetime": dt.datetime,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "decimal": Decimal,
    "uuid": UUID,
}
_PLAIN_TYPES: Final[Mapping[str, type]] = {
    "null": type(None),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    **_AS_TEXT,
}
# What conforms to a type without being of it, as numpy's numbers do, is pickled.
_CONFORMING: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (numbers.Integral,),
    "float": (numbers.Real,),
    "str": (str,),
    "bytes": (bytes, bytearray, memoryview),
}


class IncompatibleSchemaError(Exception):
    """Values of one schema cannot be made from values of another one."""


class Form(msgspec.Struct, frozen=True):
    """Form in which values are written.

    Attributes:
        serializer: name of the serializer.
        version: version of the serializer.
        type_name: the declared type as text; empty: none was declared.
        schema: schema of the values; None where they are pickled, and where none was stored.
    """

    serializer: str
    version: int
    type_name: str
    schema: Schema | None


class PlainReader:
    """Reader that makes plain data of values of a schema, without their classes.

    Args:
        schema: schema of the written values.
        find_class: finds the classes of what was pickled; never called for those of the schema.

    Attributes:
        plain: makes plain data of decoded msgpack.
    """

    def __init__(self, schema: Schema, find_class: Callable[[str, str], Any]) -> None:
        self.plain: Make = _plain(schema)
        self._find_class = find_class
        self._records = {(r["module"], r["qualname"]): r for r in _records(schema)}

    def loads(self, data: bytes) -> Any:
        """Return the plain data of bytes. Raises any error of damaged ones, and of classes that are not found."""
        if data[:1] == _PICKLED:
            return self.plain(_Unpickler(data[1:], self._records, self._find_class).load())
        return self.plain(_decode(data))


def schema_of(serializer: Serializer, hint: Any) -> Schema | None:
    """Return the schema of what a serializer writes of a type; None if only the type's classes can read it."""
    if type(serializer) is not MsgspecSerializer:
        return None
    try:
        return describe(hint)
    except Exception:  # hints are the user's: without a schema, the type's name has to do
        return None


def reader_of(
    old: Form, new: Form, serializer: Serializer, hint: Any, layers: tuple[str, ...], migrate: Make | None
) -> Serializer | None:
    """Return the reader of written values as values of today's type; None: they cannot be read.

    Args:
        old: form of the written values.
        new: form of values now.
        serializer: today's serializer.
        hint: today's type.
        layers: layers around the values, from the outside: ``map`` for pairs of key and value,
            ``list``, ``touched`` for pairs of time and value.
        migrate: makes a value of today's type from the plain data of one of another; None: by the schemas.

    Raises:
        IncompatibleSchemaError: no value can be made of an older one; has a reason, if there is more to say than
            the types.
    """
    # Types that no schema describes are read by what wrote them.
    if new.schema is None or (old.schema is None and old.serializer != "pickle"):
        same = (old.type_name, old.serializer) == (new.type_name, new.serializer)
        return serializer.reader_for(old.version) if same else None
    # It was pickled, and today a schema describes its type.
    if old.schema is None:
        if migrate is not None:
            return _evolving(None, hint, layers, migrate)
        if old.type_name and old.type_name == new.type_name:
            return PICKLE  # it was pickled when it could not be described yet
        raise IncompatibleSchemaError("what was saved is pickled, which does not say what is in it")
    # Schemas can be compared only where the same format wrote both.
    if (old.serializer, serializer.reader_for(old.version)) != (new.serializer, serializer):
        return None
    # Written alike. Only pickled values among them depend on where the classes are.
    if without_names(old.schema) == without_names(new.schema):
        if _classes_of(old.schema) == _classes_of(new.schema):
            return serializer
        migrate = None  # classes were moved
    return _evolving(old.schema, hint, layers, migrate)


def _classes_of(schema: Schema) -> list[tuple[str, str]]:
    return [(record["module"], record["qualname"]) for record in _records(schema)]


def _evolving(old: Schema | None, hint: Any, layers: tuple[str, ...], migrate: Make | None) -> Serializer:
    classes: dict[tuple[str, str], type] = {}
    new = describe(hint, classes)
    return _EvolvingReader(old, _layered(layers, old, new, hint, migrate, classes))


class _EvolvingReader(Serializer):
    name = "evolving"

    def __init__(self, old: Schema | None, make: Make) -> None:
        self._old = old
        self._make = make
        self._plain = None if old is None else _plain(old)
        self._records = {} if old is None else {(r["module"], r["qualname"]): r for r in _records(old)}

    def dumps(self, value: Any) -> bytes:
        """Raise an error: old forms are only read."""
        raise SerializationError("an older form of a type is only read")

    def loads(self, data: bytes) -> Any:
        """Read a value of the old form."""
        try:
            if self._plain is None:
                return self._make(PICKLE.loads(data))
            if data[:1] == _PICKLED:
                return self._make(self._plain(_Unpickler(data[1:], self._records).load()))
            return self._make(self._plain(_decode(data)))
        except SerializationError:
            raise
        except Exception as error:  # the user's functions, classes that are gone
            old = "an older form" if self._old is None else shown(self._old)
            raise SerializationError(
                f"a value of {old} cannot be made one of the type of today: {type(error).__name__}: {error}"
            ) from error


def _layered(
    layers: tuple[str, ...],
    old: Schema | None,
    new: Any,
    hint: Any,
    migrate: Make | None,
    classes: dict[tuple[str, str], type],
) -> Make:
    args = typing.get_args(hint)
    if not layers:
        if migrate is not None:
            return _checked(migrate, hint, new)
        if old is None:
            return lambda value: value
        return _whole(_step(old, new, classes, "a value") or _same, _maker(hint))
    # From the outside in: each layer maps the values inside it.
    layer, *left = layers
    rest = tuple(left)
    if layer == "list":
        inner = old["list"] if isinstance(old, dict) else None
        each = _layered(rest, inner, new["list"], args[0], migrate, classes)
        return lambda values: [each(value) for value in values]
    parts = old["tuple"] if isinstance(old, dict) else [None, None]
    value_of = _layered(rest, parts[1], new["tuple"][1], args[1], migrate, classes)
    if layer == "touched":
        return lambda pair: (pair[0], value_of(pair[1]))
    key_of = _layered((), parts[0], new["tuple"][0], args[0], None, classes)
    return lambda pair: (key_of(pair[0]), value_of(pair[1]))


def _whole(step: Make, made: Make) -> Make:
    def whole(plain: Any) -> Any:
        if type(plain) is not _Derived:
            return made(step(plain))
        return plain.with_fields_of(made(step(dict(plain))))

    return whole


def _checked(migrate: Make, hint: Any, new: Schema) -> Make:
    every = every_exact(hint, models=True)
    wanted = hint if isinstance(hint, type) and typing.get_origin(hint) is None else None

    def made(plain: Any) -> Any:
        value = migrate(plain)
        if not (wanted is not None and isinstance(value, wanted)) and not (every and every((value,))):
            raise TypeError(f"migrate returned {value!r:.80}, which is no {shown(new, deep=False)}")
        return value

    return made


def _maker(hint: Any) -> Make:
    hook = MsgspecSerializer.hook_of(hint)

    def made(value: Any) -> Any:
        return msgspec.convert(value, hint, dec_hook=hook)

    return made


# ---- what was written, as plain data -----------------------------------------------------------------------


def _records(schema: Any) -> list[dict[str, Any]]:
    """Return all classes with fields in a schema."""
    if isinstance(schema, list):
        return [record for part in schema for record in _records(part)]
    if not isinstance(schema, dict):
        return []
    if "record" in schema:
        return [schema, *(record for f in schema["fields"] for record in _records(f["type"]))]
    return [record for part in schema.values() for record in _records(part)]


def _plain(schema: Schema) -> Make:
    """Return the plain data of decoded msgpack, or of an unpickled object."""
    if isinstance(schema, str):
        kind = _AS_TEXT.get(schema)
        return _SCALARS.get(schema, _same) if kind is None else lambda value: msgspec.convert(value, kind)
    if "record" in schema:
        return _record_plain(schema)
    if "enum" in schema:
        return lambda value: getattr(value, "value", value)
    if "literal" in schema:
        return _same
    [(kind_name, parts)] = schema.items()
    if kind_name == "dict":
        key, inside = map(_plain, parts)
        if isinstance(parts[0], str):
            return lambda value: {key(k): inside(v) for k, v in value.items()}
        return lambda value: {_hashable(key(k)): inside(v) for k, v in value.items()}
    if kind_name == "tuple":
        steps = [_plain(part) for part in parts]
        return lambda value: tuple([step(v) for step, v in zip(steps, value, strict=True)])
    if kind_name == "union":
        members = [(part, _plain(part)) for part in parts]
        return lambda value: _member(value, members)(value)
    each = _plain(parts)
    if kind_name == "row":
        return lambda value: tuple([each(v) for v in value])
    return lambda value: [each(v) for v in value]


def _same(value: Any) -> Any:
    return value


def _hashable(plain: Any) -> Any:
    """Return plain data as a key: records and sets as tuples, the form in which those of a key are written."""
    if isinstance(plain, dict):
        return tuple(map(_hashable, plain.values()))
    return tuple(map(_hashable, plain)) if isinstance(plain, list | tuple) else plain


def _plain_int(value: Any) -> Any:
    return int(value) if type(value) is not int and isinstance(value, numbers.Integral) else value


def _plain_float(value: Any) -> Any:
    """Return a float, or the value itself if no float equals it; an int is left to :func:`_widened`."""
    if type(value) is float or not isinstance(value, numbers.Real):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    wide = float(value)
    return wide if wide == value or wide != wide else value


def _plain_str(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else value


def _plain_bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else value


_SCALARS: Final[Mapping[str, Make]] = {
    "int": _plain_int,
    "float": _plain_float,
    "str": _plain_str,
    "bytes": _plain_bytes,
}


class _Derived(dict[str, Any]):
    """Plain data of an object of a subclass: the fields of the schema, and its other attributes as they are.

    Args:
        whole: the object; its subclass is a dataclass.
        found: the fields of the schema.
    """

    def __init__(self, whole: Any, found: dict[str, Any]) -> None:
        super().__init__({**vars(whole), **found})
        self._whole = whole
        self._found = found

    def within(self, name: str) -> TypeError:
        """Return the error for an object that is a part of another value."""
        return TypeError(
            f"an object of {type(self._whole).__qualname__}, a subclass of {name}, is a part of another value: "
            f"{_MIGRATE}"
        )

    def with_fields_of(self, value: Any) -> Any:
        """Return the object with the fields of a value of today's type."""
        whole = self._whole
        if not isinstance(whole, type(value)) or not hasattr(value, "__dict__"):
            raise TypeError(
                f"{type(whole).__qualname__} is no subclass of {type(value).__qualname__} any more: {_MIGRATE}"
            )
        others = {name: each for name, each in vars(whole).items() if name not in self._found}
        given = {**others, **vars(value)}
        own = {f.name: given.pop(f.name) if f.name in given else _default(f) for f in fields(whole)}
        # Past a __setattr__ that refuses.
        vars(whole).clear()
        vars(whole).update(own | given)
        return whole


class _Placed(dict[str, Any]):
    """Plain data of a record written by place: a union may have it beside one written by name, or a dict."""


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return _missing(field.name)() if field.default is MISSING else field.default


def _is_derived(value: Any, key: tuple[str, str]) -> bool:
    return any((base.__module__, base.__qualname__) == key for base in type(value).__mro__)


def _record_plain(schema: dict[str, Any]) -> Make:
    steps = [(f["name"], f.get("key", f["name"]), _plain(f["type"])) for f in schema["fields"]]
    tag, placed = schema.get("tag"), schema.get("array")
    names = [name for name, _, _ in steps]
    key = (schema["module"], schema["qualname"])

    def plain(value: Any) -> dict[str, Any]:
        if isinstance(value, _Unpickled):
            if value.of != key:
                raise TypeError(f"{value.of[1]} stands where {key[1]} was declared")
            given = value.fields(names)
            found = {name: step(given[name]) for name, _, step in steps if name in given}
        elif isinstance(value, dict):
            found = {name: step(value[written]) for name, written, step in steps if written in value}
        elif type(value).__qualname__ == key[1]:  # its class was pickled with it
            found = {name: step(getattr(value, name)) for name, _, step in steps if hasattr(value, name)}
        elif type(value) in (list, tuple):
            places = value[1:] if tag else value
            found = {name: step(v) for (name, _, step), v in zip(steps, places, strict=False)}
        elif _is_derived(value, key):
            return _derived(value, steps, key)
        else:
            raise TypeError(f"{value!r:.80} stands where {key[1]} was declared")
        whole = {tag[0]: tag[1], **found} if tag else found
        return _Placed(whole) if placed else whole

    return plain


def _derived(value: Any, steps: list[tuple[str, str, Make]], key: tuple[str, str]) -> _Derived:
    kept = getattr(value, "__dict__", {})
    if not is_dataclass(value) or not all(name in kept for name, _, _ in steps):
        raise TypeError(
            f"an object of {type(value).__qualname__}, a subclass of {key[1]}, was saved without the names of its "
            "fields: go on with the type as it was, and let the job replace such objects first"
        )
    return _Derived(value, {name: step(kept[name]) for name, _, step in steps})


def _member(value: Any, members: list[tuple[Schema, Make]]) -> Make:
    """Return how to convert a value of a union."""
    # Exact types first: an int would also pass for a float, and a text for a date.
    for exactly in (True, False):
        for schema, make in members:
            if _accepts(schema, value, exactly):
                return make
    raise TypeError(f"{value!r:.80} is none of {' | '.join(shown(schema) for schema, _ in members)}")


def _accepts(schema: Schema, value: Any, exactly: bool) -> bool:
    if isinstance(schema, str):
        if schema == "any":
            return not exactly
        if type(value) is _PLAIN_TYPES[schema]:
            return True
        return not exactly and (
            (schema in _AS_TEXT and isinstance(value, str | dt.datetime))
            or isinstance(value, _CONFORMING.get(schema, ()))
        )
    if "record" in schema:
        if isinstance(value, _Unpickled):
            return value.of == (schema["module"], schema["qualname"])
        if type(value).__qualname__ == schema["qualname"]:
            return True
        if not exactly and _is_derived(value, (schema["module"], schema["qualname"])):
            return True
        tag, placed = schema.get("tag"), bool(schema.get("array"))
        if isinstance(value, dict):
            return isinstance(value, _Placed) is placed and (tag is None or value.get(tag[0], tag[1]) == tag[1])
        return placed and isinstance(value, list | tuple) and (tag is None or list(value[:1]) == [tag[1]])
    if "enum" in schema:
        return getattr(value, "value", value) in schema["values"]
    if "literal" in schema:
        return any(type(value) is type(known) and value == known for known in schema["literal"])
    if "dict" in schema:
        return isinstance(value, dict) and not isinstance(value, _Placed)
    return isinstance(value, list | tuple | set | frozenset)


class _Unpickled:
    """Stand-in for an object whose class may have changed."""

    of: tuple[str, str] = ("", "")

    def __new__(cls, *args: Any, **kwargs: Any) -> _Unpickled:
        made = super().__new__(cls)
        made.args, made.state = args, kwargs
        return made

    args: tuple[Any, ...]
    state: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the arguments."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def fields(self, names: list[str]) -> dict[str, Any]:
        """Return its fields by name."""
        found = dict(zip(names, self.args, strict=False))
        state = self.state
        if isinstance(state, list):
            return {**found, **dict(zip(names, state, strict=False))}
        for part in state if isinstance(state, tuple) else (state,):
            if part:
                found.update(part.get("__dict__", part))
        return found


class _Unpickler(pickle.Unpickler):
    """Unpickler of objects of the classes of a schema, without these."""

    def __init__(
        self,
        data: bytes,
        records: Mapping[tuple[str, str], Any],
        find_class: Callable[[str, str], Any] | None = None,
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._find_class = find_class or super().find_class
        self._stand_ins = {key: type(key[1], (_Unpickled,), {"of": key}) for key in records}

    def find_class(self, module: str, name: str) -> Any:
        if (found := self._stand_ins.get((module, name))) is not None:
            return found
        # By which msgspec pickles structs with keyword-only fields; a stand-in takes any arguments.
        if name == "rebuild" and module.startswith("msgspec"):
            return lambda cls, given: cls(**given)
        return self._find_class(module, name)


# ---- from the plain data of one schema to what makes values of another -------------------------------------


def _step(old: Schema, new: Schema, classes: dict[tuple[str, str], type], where: str) -> Make | None:
    """Return how plain data becomes input of :func:`msgspec.convert`; None: it is that already."""
    if isinstance(old, dict) and "union" in old:
        members = [(part, _step(part, new, classes, where)) for part in old["union"]]
        if all(step is None for _, step in members):
            return None
        made = [(part, step or _same) for part, step in members]
        return lambda value: _member(value, made)(value)
    if isinstance(new, dict) and "union" in new:
        return _into_union(old, new["union"], classes, where)
    if isinstance(old, str) or isinstance(new, str):
        if new == "float" and old in ("int", "float"):
            return _widened  # an int may stand in a field of floats
        if old == new:
            return None
        raise _incompatible(old, new, where)
    if "record" in old and "record" in new:
        return _record_step(old, new, classes, where)
    if "enum" in old and "enum" in new and old["enum"] == new["enum"]:
        _check_within(old["values"], new["values"], old, where)
        return None
    if "literal" in old and "literal" in new:
        _check_within(old["literal"], new["literal"], old, where)
        return None
    for kind in ("list", "set", "frozenset", "row"):
        if kind in old and kind in new:
            return _each(_step(old[kind], new[kind], classes, where))
    if "tuple" in old and "tuple" in new and len(old["tuple"]) == len(new["tuple"]):
        steps = [_step(*pair, classes, where) or _same for pair in zip(old["tuple"], new["tuple"], strict=True)]
        return lambda value: [step(v) for step, v in zip(steps, value, strict=True)]
    if "dict" in old and "dict" in new and _is_same(old["dict"][0], new["dict"][0]):
        inside = _step(old["dict"][1], new["dict"][1], classes, where)
        return None if inside is None else lambda value: {k: inside(v) for k, v in value.items()}
    raise _incompatible(old, new, where)


def _each(step: Make | None) -> Make | None:
    return None if step is None else lambda values: [step(value) for value in values]


def _is_same(old: Schema, new: Schema) -> bool:
    return without_names(old) == without_names(new)


def _incompatible(old: Schema, new: Schema, where: str) -> IncompatibleSchemaError:
    return IncompatibleSchemaError(f"{where} was {shown(old)} and is {shown(new)} now")


def _widened(value: Any) -> Any:
    if type(value) is int:
        wide = float(value)
        if wide != value:
            raise TypeError(f"{value} has too many digits for a float")
        return wide
    return value


def _check_within(old: list[Any], new: list[Any], schema: Schema, where: str) -> None:
    lost = [value for value in old if value not in new]
    if lost:
        gone = ", ".join(map(repr, lost))
        raise IncompatibleSchemaError(f"{where} was {shown(schema)}, which has {gone} no more")


def _into_union(
    old: Schema, members: list[Schema], classes: dict[tuple[str, str], type], where: str
) -> Make | None:
    if any(_is_same(old, member) for member in members):
        found = next(member for member in members if _is_same(old, member))
        return _step(old, found, classes, where)
    reason: IncompatibleSchemaError | None = None
    for member in members:
        try:
            return _step(old, member, classes, where)
        except IncompatibleSchemaError as error:
            # That fields do not go together says more than that a class is no None.
            if reason is None or (isinstance(member, dict) and "record" in member):
                reason = error
    if any(isinstance(member, dict) and "record" in member for member in members) and isinstance(old, dict):
        assert reason is not None
        raise reason
    raise _incompatible(old, {"union": members}, where)


def _record_step(
    old: dict[str, Any], new: dict[str, Any], classes: dict[tuple[str, str], type], where: str
) -> Make:
    name = new["record"]
    if old["record"] != name:
        raise _incompatible(old, new, where)
    by_name = {f["name"]: f for f in old["fields"]}
    by_key = {f.get("key", f["name"]): f for f in old["fields"]}
    taken: list[_Taken] = []
    for field in new["fields"]:
        key = field.get("key", field["name"])
        found = by_key.get(key) or by_name.get(field["name"])
        for earlier in field.get("was", ()) if found is None else ():
            found = found or by_name.get(earlier) or by_key.get(earlier)
        if found is None and not field.get("default"):
            raise IncompatibleSchemaError(
                f"field {field['name']!r} of {name} is new and has no default (a field that was renamed says so: "
                f"Annotated[..., RenamedFrom({next(iter(by_name), 'old')!r})])"
            )
        step = None
        if found is not None:
            step = _step(found["type"], field["type"], classes, f"field {field['name']!r} of {name}")
        taken.append((key, None if found is None else found["name"], step or _same))
    if by_name and not any(source for _, source, _ in taken):
        raise IncompatibleSchemaError(f"{name} has none of the fields any more that it had: {shown(old)}")
    cls = classes[new["module"], new["qualname"]]
    fill = _filling_places(new, cls, taken) if new.get("array") else _filling_names(new, cls, taken)

    def filled(value: Any) -> Any:
        if type(value) is _Derived:
            raise value.within(name)
        return fill(value)

    return filled


def _filling_places(new: dict[str, Any], cls: Any, taken: list[_Taken]) -> Make:
    defaults = _defaults(cls)
    head = [new["tag"][1]] if "tag" in new else []
    return lambda value: (
        head
        + [
            step(value[source]) if source is not None and source in value else defaults[place]()
            for place, (_, source, step) in enumerate(taken)
        ]
    )


def _filling_names(new: dict[str, Any], cls: Any, taken: list[_Taken]) -> Make:
    present = [(key, source, step) for key, source, step in taken if source is not None]
    start = {new["tag"][0]: new["tag"][1]} if "tag" in new else {}
    if new.get("form") == "dataclass":
        # msgspec would leave a field that is missing to its class: such an object is not written as it is.
        start |= {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    return lambda value: {
        **start,
        **{key: step(value[source]) for key, source, step in present if source in value},
    }


def _defaults(cls: Any) -> list[Callable[[], Any]]:
    """Return the defaults by place of a record that is written by place."""
    if issubclass(cls, tuple):
        known = cls._field_defaults
        return [_constant(known[name]) if name in known else _missing(name) for name in cls._fields]
    return [
        f.default_factory
        if f.default_factory is not msgspec.NODEFAULT
        else (_missing(f.name) if f.default is msgspec.NODEFAULT else _constant(f.default))
        for f in msgspec.structs.fields(cls)
    ]


def _constant(value: Any) -> Callable[[], Any]:
    plain = msgspec.to_builtins(value, builtin_types=_NATIVE)
    return lambda: plain


def _missing(name: str) -> Callable[[], Any]:
    def missing() -> Any:
        raise TypeError(f"there is nothing for field {name!r}, which has no default")

    return missing
