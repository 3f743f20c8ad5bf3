"""Mean speed per road, by an accumulator that is not what comes out of it.

Run it::

    sluiceway run examples/aggregate.py
    python examples/aggregate.py [--assert]
"""

import sys
from dataclasses import dataclass

import sluiceway as sw


@dataclass
class Car:
    """A car that has passed a counter."""

    road: str
    speed: float


@dataclass
class Sum:
    """The accumulator."""

    road: str = ""
    speeds: float = 0.0
    cars: int = 0


class MeanSpeed(sw.AggregateFunction[Car, Sum, tuple[str, float]]):
    """Emits the mean so far for each car."""

    def create_accumulator(self) -> Sum:
        return Sum()

    def add(self, value: Car, accumulator: Sum) -> Sum:
        return Sum(value.road, accumulator.speeds + value.speed, accumulator.cars + 1)

    def get_result(self, accumulator: Sum) -> tuple[str, float]:
        return accumulator.road, accumulator.speeds / accumulator.cars


CARS = [Car("A 1", 120), Car("A 2", 80), Car("A 1", 100), Car("A 2", 90), Car("A 1", 140)]

flow = sw.Pipeline("mean speed")
by_road = flow.from_collection(CARS).key_by(lambda car: car.road)
means = by_road.aggregate(MeanSpeed())
fastest = by_road.max_by("speed")
distances = by_road.sum(lambda car: car.speed / 60)

means.print("mean")
fastest.print("fastest")
distances.print("km in all, a minute each")
seen = means.collect(), fastest.collect(), distances.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        assert dict(seen[0]) == {"A 1": 120.0, "A 2": 85.0}
        assert {car.road: car.speed for car in seen[1]} == {"A 1": 140, "A 2": 90}
        assert {road: round(km, 9) for road, km in seen[2]} == {"A 1": 6.0, "A 2": round(170 / 60, 9)}
