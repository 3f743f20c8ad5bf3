"""Requirements of Spark Connect, checked before Spark's own client fails on them."""

from __future__ import annotations

import importlib.util
import socket
from typing import Final
from urllib.parse import urlsplit

from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway_spark.session.pyspark_version import too_old

__all__ = ["need_connect"]

_PORT: Final = 15002
_COMPRESSES: Final = (4, 1)
"""PySpark whose client compresses plans; the extra ``connect`` of an earlier one does not bring zstandard."""

_ANSWER_S: Final = 10.0


def need_connect(remote: str) -> None:
    """Look whether packages are there, and whether somebody answers.

    Raises:
        MissingExtraError: a package is missing.
        ConfigurationError: it is no URL.
        ConnectorError: nobody answers.
    """
    packages = {"grpc": "grpcio", "grpc_status": "grpcio-status"}
    if too_old(_COMPRESSES) is None:
        packages["zstandard"] = "zstandard"
    for module, package in packages.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(f"Spark Connect needs {package}: {install_command('pyspark[connect]')}")
    parts = urlsplit(remote)
    if remote.startswith("local"):
        return
    try:
        port = parts.port or _PORT
    except ValueError:
        port = 0
    if parts.scheme != "sc" or not parts.hostname or not port:
        raise ConfigurationError(f"remote={remote!r} must be a URL such as sc://host:15002, or local[2]")
    try:
        socket.create_connection((parts.hostname, port), _ANSWER_S).close()
    except (OSError, UnicodeError) as error:  # of a host name with a label that is empty or too long
        # Spark's client would try for ten minutes.
        raise ConnectorError(f"no Spark Connect server at {parts.hostname}:{port}: {error}") from error
