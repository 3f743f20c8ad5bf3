"""Errors that a simulation raises itself."""

from __future__ import annotations

from sluiceway.errors import SluicewayError

__all__ = ["JobManagerLostError", "SimulationError"]


class SimulationError(SluicewayError):
    """The runtime broke a guarantee in a simulation, or a pipeline used a feature that cannot be simulated."""


class JobManagerLostError(SluicewayError):
    """The simulation ended the job manager on request, and the job with it."""
