"""Types of the options of a run, for type checkers and editors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict

__all__ = ["RunOptions"]

_Duration: TypeAlias = timedelta | int | str
_Place: TypeAlias = str | os.PathLike[str]


class RunOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`Pipeline.run` and the like; each is an option of ``sluiceway run``.

    Durations are a timedelta, ms, or a text such as ``"10s"``; sizes are bytes or a text such as ``"1gb"``. None
    stands for an option that is not given.
    """

    parallelism: int | None
    max_parallelism: int | None
    workers: int | None
    engine: str | None
    hosted: bool | None
    state_backend: str | None
    transport: str | None
    chaining: bool | None
    object_reuse: bool | None
    local_aggregation: Literal["exact", "all", "off"] | None
    scheduler: str | None
    buffer_timeout: _Duration | None
    batch_size: int | None
    latency_interval: _Duration | None
    auto_watermark_interval: _Duration | None
    metrics: Sequence[str] | str | None
    metrics_interval: _Duration | None
    restart: str | None
    heartbeat_timeout: _Duration | None
    cancellation_timeout: _Duration | None
    network_buffers: int | None
    log_level: str | None
    log_format: Literal["text", "json"] | None
    checkpoint_interval: _Duration | None
    checkpoints: _Place | None
    from_checkpoint: _Place | None
    resume: bool | None
    allow_dropped_state: bool | None
    allow_pickles: bool | None
    checkpoint_retained: int | None
    checkpoint_mode: Literal["exactly-once", "at-least-once"] | None
    checkpoint_unaligned: bool | None
    checkpoint_aligned_timeout: _Duration | None
    checkpoint_timeout: _Duration | None
    checkpoint_min_pause: _Duration | None
    checkpoint_max_concurrent: int | None
    checkpoint_tolerated_failures: int | None
    local_recovery: int | str | bool | None
    on_error: Literal["fail", "skip"] | None
    max_dead_letters: int | None
    dead_letters: _Place | None
    seed: int | None
