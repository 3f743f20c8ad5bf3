"""Simulation of job manager, workers and network in one thread, in virtual time, from a seed."""

from __future__ import annotations

from sluiceway.testing.simulation.errors import JobManagerLostError, SimulationError
from sluiceway.testing.simulation.external_system import Outside, OutsideSink
from sluiceway.testing.simulation.faults import CancelJob, Crash, Fault, Hang, LoseJobManager, TakeSavepoint
from sluiceway.testing.simulation.restarts import simulate_lives
from sluiceway.testing.simulation.run import SEED_VARIABLE, Simulation, SimulationResult, for_seeds, simulate
from sluiceway.testing.simulation.trace import Event, Trace

__all__ = [
    "SEED_VARIABLE",
    "CancelJob",
    "Crash",
    "Event",
    "Fault",
    "Hang",
    "JobManagerLostError",
    "LoseJobManager",
    "Outside",
    "OutsideSink",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "TakeSavepoint",
    "Trace",
    "for_seeds",
    "simulate",
    "simulate_lives",
]
