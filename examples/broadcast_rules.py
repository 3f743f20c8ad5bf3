"""Enrich payments by rules that change while the job runs: broadcast state.

Run it::

    sluiceway run examples/broadcast_rules.py
    python examples/broadcast_rules.py [--assert]
"""

import sys
from collections.abc import Iterator
from typing import NamedTuple

import sluiceway as sw


class Payment(NamedTuple):
    """Money that somebody spends."""

    card: str
    shop: str
    amount: int
    at: int


class Rule(NamedTuple):
    """From now on, the most that may be spent in a kind of shop without a question; None: no rule any more."""

    shop: str
    limit: int | None
    at: int


PAYMENTS = [
    Payment("ann", "jeweller", 900, 1_000),
    Payment("bob", "baker", 30, 2_000),
    Payment("ann", "baker", 20, 3_000),
    Payment("bob", "jeweller", 2_000, 4_000),
    Payment("bob", "baker", 40, 6_000),
]
RULES = [
    Rule("jeweller", 500, 0),
    Rule("baker", 25, 0),
    Rule("jeweller", 1_000, 3_500),
    Rule("baker", None, 5_000),
]

LIMITS = sw.MapStateDescriptor("limits", list[Rule], key_type=str)
WAITING = sw.MapStateDescriptor("waiting", list[Payment], key_type=int)


class Ask(sw.KeyedBroadcastProcessFunction[str, Payment, Rule, str]):
    """Tells of payments above the limit that was in force when they were made.

    Nothing says in which order records of two streams come. So a payment waits for the watermark: when that has
    reached the payment's time, all rules up to then are there. Every subtask is given every rule, and comes to
    the same state.
    """

    def open(self, context: sw.RuntimeContext) -> None:
        self.waiting = context.get_map_state(WAITING)

    def process_broadcast_element(self, value: Rule, ctx: sw.KeyedBroadcastProcessFunction.Context) -> None:
        limits = ctx.get_broadcast_state(LIMITS)
        limits.put(value.shop, sorted([*limits.get(value.shop, []), value], key=lambda rule: rule.at))

    def process_element(self, value: Payment, ctx: sw.KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        self.waiting.put(value.at, [*(self.waiting.get(value.at) or []), value])
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, ctx: sw.KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[str]:
        limits = ctx.get_broadcast_state(LIMITS)
        for payment in self.waiting.get(timestamp) or []:
            in_force = [rule.limit for rule in limits.get(payment.shop, []) if rule.at <= timestamp]
            limit = in_force[-1] if in_force else None
            if limit is not None and payment.amount > limit:
                yield f"{payment.card}: {payment.amount} at the {payment.shop}'s, where {limit} is the limit"
        self.waiting.remove(timestamp)


in_order = sw.WatermarkStrategy.for_monotonous_timestamps()

flow = sw.Pipeline("broadcast rules", parallelism=2)
rules = flow.from_collection(RULES, timestamp=lambda rule: rule.at).assign_timestamps_and_watermarks(in_order)
payments = flow.from_collection(PAYMENTS, timestamp=lambda payment: payment.at)
questions = (
    payments.assign_timestamps_and_watermarks(in_order)
    .key_by(lambda payment: payment.card)
    .connect(rules.broadcast(LIMITS))
    .process(Ask())
    .uid("ask")
)
questions.print()
seen = questions.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        assert sorted(seen) == [
            "ann: 900 at the jeweller's, where 500 is the limit",
            "bob: 2000 at the jeweller's, where 1000 is the limit",
            "bob: 30 at the baker's, where 25 is the limit",
        ]
