"""Match orders with payments that come within a quarter of an hour: joining two streams by interval.

Run it::

    sluiceway run examples/interval_join.py
    python examples/interval_join.py [--assert]
"""

import sys
from typing import NamedTuple

import sluiceway as sw

MINUTE = 60_000


class Order(NamedTuple):
    """Order of a customer at a time (ms)."""

    number: str
    amount: int
    at: int


class Payment(NamedTuple):
    """Money for an order, and when it came (ms)."""

    order: str
    amount: int
    at: int


ORDERS = [
    Order("A-1", 30, 0 * MINUTE),
    Order("A-2", 80, 2 * MINUTE),
    Order("A-3", 15, 4 * MINUTE),
    Order("A-4", 60, 9 * MINUTE),
]
PAYMENTS = [
    Payment("A-1", 30, 1 * MINUTE),
    Payment("A-2", 50, 5 * MINUTE),
    Payment("A-4", 60, 8 * MINUTE),  # before the order: somebody's clock is wrong
    Payment("A-2", 30, 17 * MINUTE),  # just in time
    Payment("A-3", 15, 20 * MINUTE),  # a minute too late
]


class Paid(sw.ProcessJoinFunction[Order, Payment, str]):
    """Keeps account of what was paid for an order. State is that of the pair's key, the order's number."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.paid = context.get_state(sw.ValueStateDescriptor("paid", int, default=0))

    def process_element(self, left: Order, right: Payment, ctx: sw.ProcessJoinFunction.Context) -> list[str]:
        self.paid.update(self.paid.value() + right.amount)
        if self.paid.value() < left.amount:
            return []
        minutes = (ctx.get_right_timestamp() - ctx.get_left_timestamp()) // MINUTE
        return [f"{left.number} paid after {minutes} min"]


flow = sw.Pipeline("orders and payments", parallelism=2)
# One subtask reads them, so that the payments for an order come in their order.
orders = flow.from_collection(ORDERS, timestamp=lambda order: order.at).set_parallelism(1)
payments = flow.from_collection(PAYMENTS, timestamp=lambda payment: payment.at).set_parallelism(1)
paid = (
    orders.key_by(lambda order: order.number)
    .interval_join(payments.key_by(lambda payment: payment.order))
    .between(0, "15min")
    .process(Paid())
    .uid("paid")
)
paid.print()
seen = paid.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        # Two subtasks work on the orders, so the order of the results is not certain.
        assert sorted(seen) == ["A-1 paid after 1 min", "A-2 paid after 15 min"]
