"""Kinds of errors in messages: an error that is raised again in another process has the same exit code there."""

from __future__ import annotations

from typing import Final

from sluiceway.errors import (
    CheckpointError,
    ConfigurationError,
    ConnectorError,
    GraphError,
    IncompatibleStateError,
    JobStoreError,
    NoResourceAvailableError,
    PluginError,
    RescaleError,
    SluicewayError,
    StateQueryError,
)

__all__ = ["error_of", "kind_of"]

_KINDS: Final[dict[str, type[SluicewayError]]] = {
    kind.__name__: kind
    for kind in (
        StateQueryError,  # a ConfigurationError, too
        CheckpointError,
        ConfigurationError,
        ConnectorError,
        GraphError,
        IncompatibleStateError,
        JobStoreError,
        NoResourceAvailableError,
        PluginError,
        RescaleError,
    )
}


def kind_of(error: BaseException) -> str:
    """Return the kind of an error for a message; empty: a SluicewayError of no kind that matters."""
    return next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "")


def error_of(kind: str, text: str) -> SluicewayError:
    """Return the error of a kind that :func:`kind_of` has returned."""
    return _KINDS.get(kind, SluicewayError)(text)
