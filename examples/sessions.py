"""Cut clicks into visits, and watch visits while they last: session windows and a process function.

Run it::

    sluiceway run examples/sessions.py
    python examples/sessions.py [--assert]
"""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sluiceway as sw
from sluiceway.windows import EventTimeSessionWindows

MINUTE = 60_000


class Click(NamedTuple):
    """Somebody looks at a page, at some time (ms)."""

    user: str
    page: str
    at: int


class Visit(NamedTuple):
    """Clicks of one user without a pause of half an hour."""

    user: str
    pages: list[str]
    minutes: int


CLICKS = [
    Click("ann", "home", 0 * MINUTE),
    Click("bob", "home", 5 * MINUTE),
    Click("ann", "cart", 25 * MINUTE),
    Click("ann", "shoes", 20 * MINUTE),  # a little late: it belongs before the cart
    Click("bob", "shoes", 50 * MINUTE),
    Click("ann", "home", 90 * MINUTE),
    Click("bob", "cart", 60 * MINUTE),  # between the two sessions of bob's
    Click("bob", "thanks", 89 * MINUTE),
]


class ToVisit(sw.ProcessWindowFunction[str, Click, Visit]):
    """Is given all clicks of a session when the watermark says that no more will come.

    Whether somebody comes back is known by state of the user, for all windows.
    """

    def open(self, context: sw.RuntimeContext) -> None:
        self.visits = sw.ValueStateDescriptor("visits", int, default=0)

    def process(
        self, key: str, ctx: sw.ProcessWindowFunction.Context, elements: Sequence[Click]
    ) -> Iterator[Visit]:
        clicks = sorted(elements, key=lambda click: click.at)
        visits = ctx.global_state().get_state(self.visits)
        visits.update(visits.value() + 1)
        name = key if visits.value() == 1 else f"{key} ({visits.value()})"
        yield Visit(name, [click.page for click in clicks], (clicks[-1].at - clicks[0].at) // MINUTE)


class LeftCarts(sw.KeyedProcessFunction[str, Click, str]):
    """Tells of carts that were filled and then left alone for a quarter of an hour. This needs no window."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.clicks = context.get_map_state(sw.MapStateDescriptor("clicks", str, key_type=int))

    def process_element(self, value: Click, ctx: sw.KeyedProcessFunction.Context) -> None:
        self.clicks.put(value.at, value.page)
        ctx.timer_service().register_event_time_timer(value.at + 15 * MINUTE)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterator[str]:
        # By now, everything up to this time is there, in whatever order it came.
        then = timestamp - 15 * MINUTE
        page = self.clicks.get(then)
        self.clicks.remove(then)
        times = list(self.clicks.keys())
        if page == "cart" and not any(then < at <= timestamp for at in times):
            yield f"{ctx.get_current_key()} left a cart at {then // MINUTE} min"


flow = sw.Pipeline("sessions")
clicks = (
    flow.from_collection(CLICKS)
    .assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_bounded_out_of_orderness("30min").with_timestamp_assigner(lambda click: click.at)
    )
    .key_by(lambda click: click.user)
)
visits = clicks.window(EventTimeSessionWindows.with_gap("30min")).process(ToVisit()).uid("visits")
left = clicks.process(LeftCarts()).uid("left carts")

visits.print("visit")
left.print()
seen = visits.collect(), left.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        assert sorted(seen[0]) == [
            Visit("ann", ["home", "shoes", "cart"], 25),
            Visit("ann (2)", ["home"], 0),
            Visit("bob", ["home"], 0),
            Visit("bob (2)", ["shoes", "cart", "thanks"], 39),
        ]
        assert sorted(seen[1]) == ["ann left a cart at 25 min", "bob left a cart at 60 min"]
