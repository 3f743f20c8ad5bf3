"""Restart strategies: whether, when, and what they say when they give up."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import ConfigurationError, UnknownNameError
from sluiceway.scheduler.restart_strategy import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    restart_strategy,
)


def test_without_one_the_first_failure_is_the_end() -> None:
    assert NoRestart().delay_ms(0) is None


def test_a_fixed_delay_is_used_up() -> None:
    strategy = FixedDelay(2, 50)
    assert [strategy.delay_ms(t) for t in (0, 100, 200, 300)] == [50, 50, None, None]
    assert strategy.reason == "2 restarts were not enough"
    assert FixedDelay(1, 0).reason == "1 restart was not enough"


def test_an_exponential_delay_grows_to_its_limit_and_is_reset_by_a_quiet_time() -> None:
    strategy = ExponentialDelay(100, 500, jitter=0, reset_ms=10_000)
    assert [strategy.delay_ms(t) for t in (0, 1000, 2000, 3000, 4000)] == [100, 200, 400, 500, 500]
    assert strategy.delay_ms(4500 + 9_999) == 500
    assert strategy.delay_ms(14_999 + 10_000) == 100


@given(st.integers(0, 2**32), st.floats(0, 1), st.integers(1, 20))
def test_jitter_stays_within_its_share_and_the_limit(seed: int, jitter: float, failures: int) -> None:
    strategy = ExponentialDelay(100, 10_000, jitter=jitter, random=Random(seed))
    plain = ExponentialDelay(100, 10_000, jitter=0)
    for at in range(failures):
        drawn, exact = strategy.delay_ms(at), plain.delay_ms(at)
        assert drawn is not None
        assert exact is not None
        assert abs(drawn - exact) <= exact * jitter + 1
        assert 0 <= drawn <= 10_000


def test_a_failure_rate_forgets_old_failures() -> None:
    strategy = FailureRate(2, 1000, 10)
    assert [strategy.delay_ms(t) for t in (0, 500, 1001, 2002, 2003, 2004)] == [10, 10, 10, 10, 10, None]
    assert strategy.reason == "there were more than 2 failures within 1000 ms"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("none", NoRestart),
        ("fixed-delay:3:1s", FixedDelay),
        ("exponential:1s:1min", ExponentialDelay),
        ("exponential:1s:1min:6", ExponentialDelay),
        ("failure-rate:3:5min:1s", FailureRate),
    ],
)
def test_each_has_a_form(text: str, kind: type) -> None:
    assert type(restart_strategy(text)) is kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "fixed-delay",
            "restart strategy 'fixed-delay': it has 0 figures. Write fixed-delay:ATTEMPTS:DELAY",
        ),
        ("fixed-delay:0:1s", "'0' is not a number from 1 up"),
        ("fixed-delay:2:soon", "'soon' is not a duration"),
        ("exponential:2s:1s", "no longer than the longest"),
        ("exponential:1s:1min:0", "'0' is not a number from 1 up"),
        ("exponential:1s:1min:6:7", "it has 4 figures"),
        ("none:1", "it has 1 figures"),
    ],
)
def test_figures_that_are_none_are_refused_with_the_form(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        restart_strategy(text)
    assert says in str(caught.value)


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"no restart strategy 'fixed'.*fixed-delay"):
        restart_strategy("fixed")


def test_the_limit_for_the_same_record_is_as_given() -> None:
    limits = [restart_strategy(f"exponential:1s:1min{more}").same_record_limit for more in ("", ":6")]
    assert limits == [None, 6]
    assert restart_strategy("fixed-delay:3:1s").same_record_limit is None
