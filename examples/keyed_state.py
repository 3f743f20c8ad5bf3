"""Watch bank accounts: a function that remembers a value, a list and a mapping for every account.

Run it::

    sluiceway run examples/keyed_state.py
    python examples/keyed_state.py [--assert]
"""

import sys
from collections.abc import Iterator
from typing import NamedTuple

import sluiceway as sw


class Payment(NamedTuple):
    """Money that leaves an account."""

    account: str
    to: str
    amount: int


PAYMENTS = [
    Payment("ann", "baker", 5),
    Payment("bob", "bank", 300),
    Payment("ann", "baker", 6),
    Payment("ann", "casino", 90),
    Payment("ann", "baker", 4),
    Payment("bob", "bank", 310),
]


class Watch(sw.KeyedProcessFunction[str, Payment, str]):
    """Tells of payments that are much larger than the last three of the account, and of new payees.

    The state that is asked for in open() is always that of the current record's key.
    """

    def open(self, context: sw.RuntimeContext) -> None:
        self.total = context.get_state(sw.ValueStateDescriptor("total", int, default=0))
        self.recent = context.get_list_state(sw.ListStateDescriptor("recent", int))
        self.payees = context.get_map_state(sw.MapStateDescriptor("payees", int, key_type=str))

    def process_element(self, value: Payment, ctx: sw.KeyedProcessFunction.Context) -> Iterator[str]:
        account = ctx.get_current_key()
        recent = self.recent.get()
        if recent and value.amount > 10 * max(recent):
            yield f"{account}: {value.amount} to {value.to} is unusual"
        elif recent and not self.payees.contains(value.to):
            yield f"{account}: first payment to {value.to}"

        self.recent.update([*recent, value.amount][-3:])
        self.payees.put(value.to, (self.payees.get(value.to) or 0) + 1)
        self.total.update(self.total.value() + value.amount)
        if self.total.value() > 500:
            yield f"{account}: {self.total.value()} spent"


flow = sw.Pipeline("accounts", parallelism=2)
# One subtask reads, so that the payments of an account come in their order.
payments = flow.from_collection(PAYMENTS).set_parallelism(1)
alerts = payments.key_by(lambda payment: payment.account).process(Watch()).uid("watch")
alerts.print()
seen = alerts.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        # Two subtasks work on the accounts, so only the order within an account is certain.
        assert [alert for alert in seen if alert.startswith("ann")] == ["ann: 90 to casino is unusual"]
        assert [alert for alert in seen if alert.startswith("bob")] == ["bob: 610 spent"]
