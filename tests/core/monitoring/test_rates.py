"""Rates of subtasks between two readings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.rates import RateMeter

FIRST = SubtaskMetrics("map", 0, "running", 80, 40, 8.0, 1.0, 0.5, vertex_id=1, bytes_in=100, at_ms=1_000)


def metrics(*subtasks: SubtaskMetrics, **rest: Any) -> JobMetrics:
    return JobMetrics("wc", "running", 10.0, 100, 50, subtasks, **rest)


def test_shares_add_up() -> None:
    meter = RateMeter()
    [first] = meter.read("wc", metrics(FIRST))
    assert (first.busy, first.blocked, first.idle) == (0.8, 0.1, 0.05)
    assert first.waiting == pytest.approx(0.05)
    later = replace(FIRST, busy_s=8.5, backpressured_s=1.5, idle_s=0.75, bytes_in=300, at_ms=3_000)
    [second] = meter.read("wc", metrics(later))
    assert (second.busy, second.blocked, second.idle, second.waiting) == (0.25, 0.25, 0.125, 0.375)
    assert second.bytes_in_per_s == 100


def test_more_than_the_whole_is_scaled() -> None:
    meter = RateMeter()
    meter.read("wc", metrics(FIRST))
    later = replace(FIRST, busy_s=9.5, backpressured_s=1.5, at_ms=2_000)  # two seconds within one
    [rates] = meter.read("wc", metrics(later))
    assert (rates.busy, rates.blocked, rates.waiting) == (0.75, 0.25, 0.0)


def test_jobs_that_are_gone_are_forgotten() -> None:
    meter = RateMeter()
    meter.read("one", metrics(FIRST))
    meter.read("two", metrics(FIRST))
    meter.keep(["two"])
    assert {key[0] for key in meter._before} == {"two"}
