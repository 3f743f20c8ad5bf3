"""Jobs of the running cluster by what people call them: an id, or a name that only one of them has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from sluiceway.errors import ConfigurationError, ConnectorError

if TYPE_CHECKING:
    from sluiceway.monitoring.infos import JobInfo
    from sluiceway.runtime.cluster.client import ClusterClient

__all__ = ["ENDED", "id_among", "id_of", "job_for_want_of_place", "last_of"]

ENDED: Final = ("finished", "failed", "canceled")
_MOST_LISTED: Final = 10


def last_of(names: Sequence[str]) -> str:
    """Return names as a part of a sentence: the last ten, and the number of the others."""
    others = len(names) - _MOST_LISTED
    listed = ", ".join(names[-_MOST_LISTED:])
    return f"{listed}, and {others} other{'s' * (others != 1)}" if others > 0 else listed


def id_of(client: ClusterClient, job: str) -> str:
    """Return the id of a job of the cluster; arguments and errors are those of :func:`id_among`."""
    return id_among(client.status().jobs, job)


@contextmanager
def job_for_want_of_place(name: str) -> Iterator[tuple[ClusterClient, str]]:
    """Give a client of the cluster and the id of a job, for a command that takes a directory as well.

    Args:
        name: an id or name of a job. It may have been meant for a directory, so the errors speak of both.

    Raises:
        ConfigurationError: no job is called like that, or several are.
        ConnectorError: no cluster is running.
    """
    from sluiceway.runtime.cluster.client import ClusterClient

    with ExitStack() as stack:
        try:
            client = stack.enter_context(ClusterClient())
            job = id_of(client, name)
        except ConnectorError as error:
            raise ConnectorError(f"there is no directory {name!r}, and for a job of that name, {error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"there is no directory {name!r}, and {error}") from error
        yield client, job


def id_among(jobs: Iterable[JobInfo], job: str) -> str:
    """Return the id of a job.

    Args:
        jobs: those that the cluster knows.
        job: an id, or the name of a pipeline. Of several jobs by that name, the one that has not ended is meant.

    Raises:
        ConfigurationError: no job is called like that, or several are; names their ids.
    """
    jobs = list(jobs)
    if any(each.job == job for each in jobs):
        return job
    named = [each for each in jobs if each.name == job]
    chosen = [each for each in named if each.status not in ENDED] or named
    if len(chosen) == 1:
        return chosen[0].job
    if chosen:
        listed = last_of([f"{each.job} ({each.status})" for each in chosen])
        raise ConfigurationError(f"there are {len(chosen)} jobs {job!r}: give the id of one of them, {listed}")
    near = get_close_matches(job, [*(each.job for each in jobs), *(each.name for each in jobs)], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigurationError(f"there is no job {job!r}: sluiceway list shows which there are.{hint}")
