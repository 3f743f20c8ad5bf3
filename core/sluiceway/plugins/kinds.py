"""The kinds of thing that plugins offer."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "CHECKPOINT_STORAGE",
    "CLI_COMMAND",
    "CONNECTOR",
    "ENGINE",
    "KINDS",
    "METRICS_REPORTER",
    "PARTITIONER",
    "SERIALIZER",
    "STATE_BACKEND",
    "TRANSPORT",
    "WEB_SERVER",
    "Kind",
]


class Kind(msgspec.Struct, frozen=True):
    """One kind of offer.

    Attributes:
        word: what messages call one of it.
        hook: the hook that offers it.
    """

    word: str
    hook: str


STATE_BACKEND: Final = Kind("state backend", "sluiceway_state_backends")
TRANSPORT: Final = Kind("transport", "sluiceway_transports")
CONNECTOR: Final = Kind("connector", "sluiceway_connectors")
SERIALIZER: Final = Kind("serializer", "sluiceway_serializers")
PARTITIONER: Final = Kind("partitioner", "sluiceway_partitioners")
METRICS_REPORTER: Final = Kind("metrics reporter", "sluiceway_metrics_reporters")
CHECKPOINT_STORAGE: Final = Kind("checkpoint storage", "sluiceway_checkpoint_storages")
ENGINE: Final = Kind("engine", "sluiceway_engines")
WEB_SERVER: Final = Kind("web server", "sluiceway_web_servers")
CLI_COMMAND: Final = Kind("command", "sluiceway_cli_commands")

KINDS: Final = (
    ENGINE,
    STATE_BACKEND,
    TRANSPORT,
    CONNECTOR,
    PARTITIONER,
    SERIALIZER,
    METRICS_REPORTER,
    CHECKPOINT_STORAGE,
    WEB_SERVER,
    CLI_COMMAND,
)
"""All kinds, in the order in which people are shown them."""
