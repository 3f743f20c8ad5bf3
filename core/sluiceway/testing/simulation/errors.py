"""Errors that a simulation raises itself."""

from __future__ import annotations

from sluiceway.errors import SluicewayError

__all__ = ["JobManagerLostError", "SimulationError"]


class SimulationError(SluicewayError):
    """The runtime broke a promise in a simulation, or a pipeline did what cannot be simulated."""


class JobManagerLostError(SluicewayError):
    """The simulation ended the job manager, as it was told to, and the job with it."""
