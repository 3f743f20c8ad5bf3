"""What the engine has, by the way in which it runs a job."""

from __future__ import annotations

from typing import Final

from sluiceway.capabilities import ONE_PROCESS, Capabilities, Feature, Lack
from sluiceway.config import Settings

__all__ = ["hosted"]

_NO_CLUSTER: Final = Lack(
    "executors are Spark's and go with the job", "submit programs with spark-submit, or use sluiceway cluster"
)


def hosted(settings: Settings) -> Capabilities:
    """With workers of ours on its executors: all that they have anywhere, but what is for one machine."""
    lacks = {Feature.PROCESS_OBJECTS: ONE_PROCESS, Feature.STAYING_CLUSTER: _NO_CLUSTER}
    if settings.transport != "zmq":
        elsewhere = f"{settings.transport!r} is not for workers on several machines"
        if settings.transport == "auto":
            elsewhere = "workers on several machines have one that reaches them"
        lacks[Feature.TRANSPORTS] = Lack(elsewhere, "leave transport at 'auto', which is 'zmq' there")
    return Capabilities("engine 'spark' with --hosted", lacks)
