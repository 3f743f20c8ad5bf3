"""Contract of leader election among the job managers of a cluster.

Exactly one job manager may write the job store and lead jobs at a time. The others stand by, and campaign when the
leader is gone or silent. An implementation is used by one process, in one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sluiceway.errors import SluicewayError

__all__ = ["Leader", "LeaderElection", "LeadershipLostError"]


class LeadershipLostError(SluicewayError):
    """Loss of leadership by this process: it must neither write the job store nor answer for jobs any more."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The job manager that leads.

    Attributes:
        pid: its process id.
        epoch: of its leadership.
        address: where it can be reached; empty while it starts.
    """

    pid: int
    epoch: int
    address: str = ""


class LeaderElection(ABC):
    """One candidate in an election.

    Guarantees: :meth:`is_leader` is true in at most one process at a time, and the epoch of each leadership is
    higher than those of all before it. All methods are called in one thread and return within seconds.
    """

    @abstractmethod
    def campaign(self) -> bool:
        """Become the leader if nobody else is. Return whether this candidate leads; call again if not.

        Raises:
            OSError: the election cannot be held, as with a full disk; nobody leads by that.
        """

    @abstractmethod
    def is_leader(self) -> bool:
        """Return whether this candidate leads. Once it has lost, it never leads again."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Number of this candidate's leadership, from 1; 0 if it has none."""

    @abstractmethod
    def announce(self, address: str) -> None:
        """Publish where this leader can be reached. Raises OSError."""

    @abstractmethod
    def leader(self) -> Leader | None:
        """Return who leads, as far as it has said so; None: nobody, or it cannot be read."""

    @abstractmethod
    def depose(self) -> bool:
        """Fence off a leader that is silent. Return whether it is certain that it can do nothing any more.

        Only then may this or another candidate win. A leader that was suspended must not go on when it wakes up.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave the leadership to others, and end. Harmless twice."""
