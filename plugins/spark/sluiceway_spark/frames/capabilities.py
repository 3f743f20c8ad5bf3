"""Capabilities of a transform, over a DataFrame and over a streaming one."""

from __future__ import annotations

from typing import Final

from sluiceway.engine.capabilities import Capabilities, Feature, Unsupported

__all__ = ["batch", "stream"]

_ONE_WAY: Final = Unsupported(
    "rows go through Spark in one direction", "run the pipeline by itself, with --hosted or on engine 'local'"
)


def batch() -> Capabilities:
    """Return the capabilities over a DataFrame that is no stream."""
    return Capabilities("transform() of a DataFrame", {Feature.ITERATIONS: _ONE_WAY})


def stream() -> Capabilities:
    """Return the capabilities over a streaming DataFrame."""
    lacks = {
        Feature.ITERATIONS: _ONE_WAY,
        Feature.ALIGNMENT: Unsupported(
            "Spark reads the sources, each micro-batch as far as they have come", "leave it out"
        ),
    }
    return Capabilities("transform() of a streaming DataFrame", lacks)
