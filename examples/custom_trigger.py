"""A trigger of one's own: totals of an hour, with news in between whenever much has come together.

Run it::

    sluiceway run examples/custom_trigger.py
    python examples/custom_trigger.py [--assert]
"""

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import sluiceway as sw
from sluiceway.windows import Trigger, TriggerContext, TriggerResult, TumblingEventTimeWindows, Window

MINUTE = 60_000


class Sale(NamedTuple):
    """Takings of a shop at a time (ms)."""

    shop: str
    amount: int
    at: int


SALES = [
    Sale("north", 40, 1 * MINUTE),
    Sale("north", 70, 10 * MINUTE),  # 110 since the beginning
    Sale("south", 20, 12 * MINUTE),
    Sale("north", 30, 30 * MINUTE),
    Sale("north", 90, 55 * MINUTE),  # 120 since the last news
    Sale("south", 10, 59 * MINUTE),
    Sale("north", 5, 61 * MINUTE),
]

# What has come together since the window was evaluated last. It belongs to one key and one window.
SINCE = sw.ReducingStateDescriptor("since", int, reduce=lambda a, b: a + b)


@dataclass(frozen=True)
class Amount(Trigger):
    """Evaluates a window whenever so much has come since the last time, and at its end.

    A trigger is a description: one object serves all keys and windows. What it remembers is in the context.
    """

    enough: int

    def on_element(self, value: Sale, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        context.register_event_time_timer(window.max_timestamp)
        since = context.get_reducing_state(SINCE)
        since.add(value.amount)
        if (since.get() or 0) < self.enough:
            return TriggerResult.CONTINUE
        since.clear()
        return TriggerResult.FIRE

    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Window, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp)
        context.get_reducing_state(SINCE).clear()

    # With these two it also works for windows that merge, as sessions do.

    @property
    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        context.merge_reducing_state(SINCE)
        context.register_event_time_timer(window.max_timestamp)


def total(shop: str, window: Any, sales: list[Sale]) -> list[tuple[str, int, int]]:
    return [(shop, window.start // MINUTE, sum(sale.amount for sale in sales))]


flow = sw.Pipeline("custom trigger")
totals = (
    flow.from_collection(SALES)
    .assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda sale: sale.at)
    )
    .key_by(lambda sale: sale.shop)
    .window(TumblingEventTimeWindows.of("1h"))
    .trigger(Amount(100))
    .apply(total)
    .uid("totals")
)
totals.print()
seen = totals.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        north = [(hour, amount) for shop, hour, amount in seen if shop == "north"]
        assert north == [(0, 110), (0, 230), (0, 230), (60, 5)]
        assert [(hour, amount) for shop, hour, amount in seen if shop == "south"] == [(0, 30)]
