"""Output of Spark's JVM on a terminal that this process writes to, too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["launch_for_terminal"]


def launch_for_terminal(settings: Mapping[str, str]) -> None:
    """Launch Spark's JVM with its standard error passed on by this process, if that is a terminal.

    A progress line that changes in place is erased only before what this process writes: what the JVM wrote by
    itself stood behind the line, which so stayed on the terminal each time.

    Args:
        settings: of the session that will be made.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ or not _is_terminal():
        return
    conf = SparkConf()
    conf.setAll(list(settings.items()))
    reading, writing = os.pipe()
    # Before the JVM is there, which would wait for a reader when the pipe is full.
    threading.Thread(target=_pass_on, args=(reading,), name="sluiceway-spark-output", daemon=True).start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing})
    finally:
        # The JVM has its own copy: the reader sees the end when that is closed.
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            with suppress(AttributeError, OSError, ValueError):  # there is none any more: the JVM must not wait
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()
