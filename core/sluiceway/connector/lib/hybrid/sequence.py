"""Sources of a hybrid source in their order, made when it is their turn where functions make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from sluiceway.connector import Boundedness, Source
from sluiceway.connector.products import check_properties
from sluiceway.errors import ConfigurationError

__all__ = ["Given", "SourceSequence", "SourceSwitch"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceSwitch:
    """End of one source of a :class:`HybridSource`, for the function that makes the next one.

    Attributes:
        previous: the source that has ended.
        started_ms: when reading it began, in ms since the epoch, by the clock of the job manager.
        ended_ms: when all readers had read it to its end.
    """

    previous: Source[Any]
    started_ms: int
    ended_ms: int


Given: TypeAlias = Source[T] | Callable[[SourceSwitch], Source[T]]


class SourceSequence(Generic[T]):
    """Sources, and functions that make one.

    Args:
        given: in their order.
        boundedness: that of the last one.
    """

    def __init__(self, given: Sequence[Given[T]], boundedness: Boundedness) -> None:
        self.given = tuple(given)
        self.boundedness = boundedness

    def __len__(self) -> int:
        return len(self.given)

    @property
    def known(self) -> list[Source[T]]:
        """Those that no function makes."""
        return [given for given in self.given if isinstance(given, Source)]

    @property
    def has_functions(self) -> bool:
        """True if a function makes one."""
        return len(self.known) < len(self.given)

    def at(self, times: Sequence[int]) -> Source[T]:
        """Return the source that is the last to have begun, given when each of them has.

        Raises:
            ConfigurationError: there are fewer sources; or a function made none, or one that does not end.
        """
        index = len(times) - 1
        if index >= len(self.given):
            raise ConfigurationError(
                f"the snapshot that the job goes on from has read source {index + 1} of a HybridSource, and this "
                f"one has {len(self.given)}: keep the sources and their order, or give this source another uid"
            )
        given = self.given[index]
        if isinstance(given, Source):
            return given
        made = given(SourceSwitch(self.at(times[:-1]), times[-2], times[-1]))
        if not isinstance(made, Source):
            raise ConfigurationError(
                f"HybridSource: the function for source {index + 1} of {len(self.given)} must return a source, "
                f"and returned {made!r:.100} ({type(made).__name__})"
            )
        check_properties(made)
        if made.boundedness is Boundedness.UNBOUNDED and (
            index < len(self.given) - 1 or self.boundedness is Boundedness.BOUNDED
        ):
            raise ConfigurationError(
                f"HybridSource: the function for source {index + 1} of {len(self.given)} made {made!r:.200}, "
                "which does not end: only the last one may, where boundedness= does not say that it ends"
            )
        return made
