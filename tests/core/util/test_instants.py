"""Points in time of other libraries, in ms since the epoch."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.config.settings import duration_ms
from sluiceway.util.instants import instant_ms, look_like_seconds

NOON = datetime(2024, 3, 31, 12, tzinfo=UTC)
NOON_MS = 1_711_886_400_000


@pytest.mark.parametrize(
    "given",
    [
        NOON_MS,
        float(NOON_MS),
        Fraction(NOON_MS),
        np.int64(NOON_MS),
        np.uint64(NOON_MS),
        np.float64(NOON_MS),
        NOON,
        NOON.astimezone(ZoneInfo("America/New_York")),
        NOON + timedelta(microseconds=999),
        pd.Timestamp(NOON),
        pd.Timestamp("2024-03-31 14:00:00.000999999", tz="Europe/Berlin"),
    ],
    ids=lambda given: f"{type(given).__name__} {given}",
)
def test_points_in_time_become_ms(given: Any) -> None:
    ms = instant_ms(given)
    assert ms == NOON_MS
    assert type(ms) is int


def test_fractions_of_a_ms_are_cut_off_towards_the_past() -> None:
    assert instant_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)) == -1
    assert instant_ms(np.int32(-5)) == -5


@given(st.datetimes(timezones=st.timezones()))
def test_the_ms_of_a_datetime_are_exact(at: datetime) -> None:
    """A float of seconds is not, in the year 9999."""
    back = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms(at))
    assert timedelta() <= at.astimezone(UTC) - back < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (datetime(2024, 3, 31), "no time zone"),
        (pd.Timestamp("2024-03-31"), "no time zone"),
        (pd.NaT, "no point in time"),
        (np.datetime64("2024-03-31"), "astype"),
        (1.5, "whole number"),
        (1_711_843_200.25, r"looks like seconds: int\(1000"),
        (float("nan"), "whole number"),
        (float("inf"), "whole number"),
        (None, "every record needs one"),
        ("2024-03-31", "fromisoformat"),
        (date(2024, 3, 31), "combine"),
        (timedelta(1), "duration"),
        (True, "^$"),
        (np.True_, "^$"),
        (Decimal(5), "^$"),
    ],
    ids=lambda given: repr(given)[:30],
)
def test_what_is_no_point_in_time_is_refused_with_a_hint(given: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        instant_ms(given)


def test_no_library_is_imported_for_that() -> None:
    code = (
        "import sys; from sluiceway.util.instants import instant_ms; instant_ms(5.0);"
        "print({'numpy', 'pandas'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_what_looks_like_seconds() -> None:
    assert look_like_seconds(NOON_MS // 1000)
    assert not look_like_seconds(NOON_MS)
    assert not any(map(look_like_seconds, (-5, 0, 5_000, 86_400_000)))


@pytest.mark.parametrize("given", [5000, 5000.0, np.int64(5000), timedelta(seconds=5), pd.Timedelta("5s"), "5s"])
def test_durations_may_be_whole_numbers_of_other_types(given: Any) -> None:
    assert duration_ms(given) == 5000


@pytest.mark.parametrize("given", [1.5, NOON, True, None, np.int64(-1), float("nan")])
def test_what_is_no_duration(given: Any) -> None:
    with pytest.raises(ValueError, match="is not a"):
        duration_ms(given)
