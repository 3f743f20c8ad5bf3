"""Count: the aggregate function of queries 5, 11 and 12."""

from typing import Any

import sluiceway as sw

__all__ = ["Count"]


class Count(sw.AggregateFunction[Any, int, int]):
    """The number of records."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2
