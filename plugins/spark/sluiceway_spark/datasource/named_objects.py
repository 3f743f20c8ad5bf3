"""Sources, sinks and types that options of a data source name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import ConfigurationError

__all__ = ["find_object", "made_by", "storage_at"]

T = TypeVar("T")


def find_object(option: str, path: str) -> Any:
    """Return the object that ``package.module:name`` names.

    Raises:
        ConfigurationError: there is no such thing; names the option.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise ConfigurationError(f"option {option}={path!r} must be like 'package.module:name'")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"option {option}={path!r}: there is no module {error.name!r} where Spark's Python runs. Install it, "
            "or have it on the PYTHONPATH of the driver and of all executors"
        ) from None
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ConfigurationError(f"option {option}={path!r}: module {module_name!r} has no {name!r}") from None
    return found


def made_by(option: str, name: str, contract: type[T], arguments: Mapping[str, str]) -> T:
    """Return the source or sink that an option names.

    Args:
        option: ``source`` or ``sink``.
        name: ``package.module:name`` of one, or of a function that makes it; or the name of a plugin's connector.
        contract: Source or Sink.
        arguments: for what makes it; what is JSON is what that means, and everything else a text.

    Raises:
        ConfigurationError: there is no such thing, or it is something else.
        UnknownNameError: there is no such connector.
    """
    found = find_object(option, name) if ":" in name else _of_plugin(option, name)
    if isinstance(found, contract):
        if arguments:
            raise ConfigurationError(
                f"option {option}={name!r} is a {contract.__name__} already: {option}.{min(arguments)} is for a "
                "function that makes one"
            )
        return found
    if not callable(found):
        raise ConfigurationError(
            f"option {option}={name!r} is {found!r:.60}: no {contract.__name__}, and no function that makes one"
        )
    try:
        made = found(**{argument: _meant(value) for argument, value in arguments.items()})
    except TypeError as error:
        raise ConfigurationError(f"option {option}={name!r} with its options {option}.NAME: {error}") from error
    if not isinstance(made, contract):
        raise ConfigurationError(f"option {option}={name!r} made {made!r:.60}, which is no {contract.__name__}")
    return made


def storage_at(location: str) -> CheckpointStorage:
    """Return the checkpoint storage of a path or URL.

    Raises:
        ConfigurationError: there is none for such URLs.
        MissingExtraError: it needs a package.
    """
    from sluiceway.plugins import default_manager

    return default_manager().checkpoint_storage(location)


def _of_plugin(option: str, name: str) -> Any:
    from sluiceway.plugins import default_manager

    make = getattr(default_manager().connector(name), option)
    if make is None:
        raise ConfigurationError(f"option {option}={name!r}: connector {name!r} has no {option}")
    return make


def _meant(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
