"""Resolution of a source, sink or partitioner given as an object or a name."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any, Final

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.connector import Sink, Source
from sluiceway.connector.products import check_properties
from sluiceway.errors import ConfigurationError, PluginError

__all__ = ["check_partitioner", "resolve_sink", "resolve_source"]


def resolve_source(given: object, options: dict[str, Any], unnamed: tuple[Any, ...] = ()) -> Source[Any]:
    """Return the source that was given, or the one that a connector of that name makes.

    Raises:
        TypeError: ``given`` is something else, ``options`` are not the connector's, or some are ``unnamed``.
        ConfigurationError: the connector has no source.
        UnknownNameError: no plugin offers a connector of that name.
        MissingExtraError: its third-party library is not installed.
        PluginError: what it says about itself is of the wrong kind.
    """
    made: Source[Any] = _resolve("source", Source, given, options, unnamed)
    return made


def resolve_sink(given: object, options: dict[str, Any], unnamed: tuple[Any, ...] = ()) -> Sink[Any]:
    """Return the sink that was given, or that of the connector of that name; as :func:`resolve_source`."""
    made: Sink[Any] = _resolve("sink", Sink, given, options, unnamed)
    return made


def _resolve(word: str, kind: type[Any], given: object, options: dict[str, Any], unnamed: tuple[Any, ...]) -> Any:
    where = f"{word}() at {caller_location()}"
    if isinstance(given, kind):
        if unnamed:
            raise TypeError(
                f"{where} takes nothing but a {word} object; options are given to {type(given).__name__}(...)"
            )
        if options:
            raise TypeError(
                f"{where}: {', '.join(options)} cannot be given together with a {word} object; "
                f"give {'it' if len(options) == 1 else 'them'} to {type(given).__name__}(...)"
            )
        check_properties(given)
        return given
    if isinstance(given, str):
        return _by_name(word, kind, given, options, unnamed, where)
    if isinstance(given, type) and issubclass(given, Source | Sink):
        raise TypeError(f"{where} was given the class {given.__name__}; give it an object: {given.__name__}(...)")
    other, its_method = (Sink, "sink") if word == "source" else (Source, "source")
    if isinstance(given, other):
        raise TypeError(f"{where}: {type(given).__name__} is a {its_method}, not a {word}")
    raise TypeError(
        f'{where} takes a {word} object or the name of a connector, as in {word}("socket", ...), '
        f"not {describe(given)}{_advice_on(word, given)}"
    )


def _advice_on(word: str, given: object) -> str:
    """Return advice on a DataFrame of Spark, known by the name of its module; empty for other objects."""
    if (
        word != "source"
        or type(given).__name__ != "DataFrame"
        or not type(given).__module__.startswith("pyspark.")
    ):
        return ""
    return (
        ". sluiceway_spark has SparkSource.dataframe(df), which reads a DataFrame of Spark, and "
        "transform(df, build), which runs a pipeline between two"
    )


def _by_name(
    word: str, kind: type[Any], name: str, options: dict[str, Any], unnamed: tuple[Any, ...], where: str
) -> Any:
    from sluiceway.plugins import default_manager

    connector = default_manager().connector(name)
    factory = connector.source if word == "source" else connector.sink
    if factory is None:
        has = "a sink" if word == "source" else "a source"
        raise ConfigurationError(f"{where}: connector {name!r} has no {word}, only {has}")
    try:
        signature = inspect.signature(factory)
        if unnamed:
            raise TypeError("options are given by name, not by position")
        signature.bind(**options)
    except ValueError:
        # Written in C, without a signature: the call itself tells what is wrong.
        pass
    except TypeError as error:
        raise TypeError(f"{where}: {word} {name!r}: {_unfit(signature, options, error)}") from None
    made = factory(*unnamed, **options)
    if not isinstance(made, kind):
        raise PluginError(
            f"{where}: connector {name!r} made {describe(made)}; it must make a {kind.__name__} "
            f"(sluiceway.connector.{kind.__name__})"
        )
    check_properties(made)
    return made


def _unfit(signature: inspect.Signature, options: dict[str, Any], error: TypeError) -> str:
    known = [n for n, p in signature.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    listed = f"Its options: {', '.join(known)}" if known else "It has no options"
    for option in options:
        if option not in known:
            close = get_close_matches(option, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            return f"there is no option {option!r}.{hint} {listed}"
    return f"{error}. {listed}"


_BUILT_IN: Final = {
    "forward": "forward()",
    "rebalance": "rebalance()",
    "rescale": "rescale()",
    "shuffle": "shuffle()",
    "broadcast": "broadcast()",
    "global": "global_()",
    "hash": "key_by(key)",
    "custom": "partition_custom(function, key)",
}


def check_partitioner(name: str) -> None:
    """Raise UnknownNameError, PluginError or MissingExtraError unless a plugin offers the partitioner."""
    from sluiceway.plugins import default_manager
    from sluiceway.plugins.kinds import PARTITIONER

    if name in _BUILT_IN:
        raise ConfigurationError(
            f"partition_custom({name!r}) at {caller_location()}: that one is built in; write {_BUILT_IN[name]}"
        )
    default_manager().find(PARTITIONER, name)
