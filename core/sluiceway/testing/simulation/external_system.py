"""External system of a sink in simulated jobs: strict, and it survives every crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from random import Random
from typing import Any
from weakref import WeakValueDictionary

from sluiceway.connector import WriterContext
from sluiceway.connector.two_phase_commit import TwoPhaseCommitSink
from sluiceway.testing.exactly_once import InjectedError
from sluiceway.util.overriding import override

__all__ = ["Outside", "OutsideSink"]

_numbers = count()
# Sinks are pickled on their way to workers; by its number each copy finds the one store again.
_living: WeakValueDictionary[int, Outside] = WeakValueDictionary()


class _State(Enum):
    OPEN = "open"
    READY = "pre-committed"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class _Transaction:
    owner: tuple[str, int]
    state: _State = _State.OPEN
    records: list[Any] = field(default_factory=list)


class Outside:
    """Store of committed records, like a database outside the simulated processes.

    It is strict: a transaction that is written after its pre-commit, committed before that or after it was
    aborted, aborted after it was committed, or committed twice by one attempt, is an ``AssertionError``, which
    fails the job. Make it before the simulation, and keep it while there is a sink of it.

    Args:
        seed: decides which calls fail.
        fails: the chance with which the commit of a transaction fails, half of the time after it has been done.
            Once done it does not fail again.

    Attributes:
        records: what was committed, in that order.
        failed: how many commits have failed.
    """

    def __init__(self, seed: int = 0, fails: float = 0.0) -> None:
        self.records: list[Any] = []
        self.failed = 0
        self._fails = fails
        self._chance = Random(seed)
        self._transactions: dict[int, _Transaction] = {}
        self._number = next(_numbers)
        _living[self._number] = self

    def sink(self) -> OutsideSink:
        """Return a sink that writes to it in transactions."""
        return OutsideSink(self._number)

    def counts(self) -> Counter[Any]:
        """Return the number of commits of each record."""
        return Counter(self.records)

    # ---- what sinks call ------------------------------------------------------------------------------------

    def begin(self, owner: tuple[str, int]) -> int:
        """Begin a transaction of a subtask."""
        number = len(self._transactions) + 1
        self._transactions[number] = _Transaction(owner)
        return number

    def write(self, number: int, values: Sequence[Any]) -> None:
        """Add records."""
        self._expect(number, "written to", _State.OPEN).records.extend(values)

    def pre_commit(self, number: int) -> None:
        """Close a transaction for records."""
        self._expect(number, "pre-committed", _State.OPEN).state = _State.READY

    def commit(self, number: int, again: bool) -> None:
        """Commit a transaction; ``again`` if an earlier attempt may have done so."""
        allowed = (_State.READY, _State.COMMITTED) if again else (_State.READY,)
        transaction = self._expect(number, "committed", *allowed)
        fails = transaction.state is _State.READY and self._chance.random() < self._fails
        if fails and self._chance.random() < 0.5:
            self._fail(f"before it was committed: transaction {number}")
        if transaction.state is _State.READY:
            transaction.state = _State.COMMITTED
            self.records += transaction.records
        if fails:
            self._fail(f"after it was committed: transaction {number}")

    def abort(self, number: int) -> None:
        """Abort a transaction."""
        self._expect(number, "aborted", _State.OPEN, _State.READY, _State.ABORTED).state = _State.ABORTED

    def abort_all_of(self, owner: tuple[str, int]) -> None:
        """Abort all other transactions that earlier attempts of a subtask have begun."""
        for transaction in self._transactions.values():
            if transaction.owner == owner and transaction.state in (_State.OPEN, _State.READY):
                transaction.state = _State.ABORTED

    def _expect(self, number: int, done: str, *allowed: _State) -> _Transaction:
        transaction = self._transactions[number]
        if transaction.state not in allowed:
            uid, subtask = transaction.owner
            raise AssertionError(
                f"transaction {number} of {uid!r} [{subtask}], which is {transaction.state.value}, is to be {done}"
            )
        return transaction

    def _fail(self, what: str) -> None:
        self.failed += 1
        raise InjectedError(f"injected {what}")


class OutsideSink(TwoPhaseCommitSink[Any, int]):
    """Sink that writes to an :class:`Outside` of this process; created by its method ``sink``."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._owner = ("", 0)

    @property
    def _outside(self) -> Outside:
        return _living[self._number]

    def open(self, context: WriterContext) -> None:
        """Record the owner of the transactions."""
        self._owner = context.uid, context.subtask

    @override
    def begin_transaction(self) -> int:
        return self._outside.begin(self._owner)

    @override
    def write(self, transaction: int, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._outside.write(transaction, values)

    @override
    def pre_commit(self, transaction: int) -> None:
        self._outside.pre_commit(transaction)

    def commit(self, transaction: int) -> None:
        """Commit; not twice in one attempt."""
        self._outside.commit(transaction, again=False)

    @override
    def abort(self, transaction: int) -> None:
        self._outside.abort(transaction)

    def recover_and_commit(self, transaction: int) -> None:
        """Commit, unless that was done."""
        self._outside.commit(transaction, again=True)

    def abort_unknown(self) -> None:
        """Abort transactions left by earlier attempts of the subtask."""
        self._outside.abort_all_of(self._owner)
