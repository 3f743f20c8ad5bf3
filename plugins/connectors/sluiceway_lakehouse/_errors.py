"""Errors of tables of lakehouses."""

from __future__ import annotations

from sluiceway.errors import ConnectorError, SuppressRestartsError

__all__ = ["MisfitError"]


class MisfitError(ConnectorError, SuppressRestartsError):
    """The table cannot be read or written so. A restart of the job does not help."""
