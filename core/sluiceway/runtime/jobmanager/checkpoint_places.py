"""Places for checkpoints and savepoints of a job: their defaults, and whether they can be used."""

from __future__ import annotations

from sluiceway.config.options import OPTIONS, UnfitError
from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.errors import ConfigurationError

__all__ = ["check_place", "check_savepoint_place", "savepoint_place"]


def savepoint_place(place: str | None, checkpoints: str | None) -> str:
    """Return the place of a savepoint.

    Args:
        place: place that was requested.
        checkpoints: place of the job's checkpoints, the default.

    Raises:
        ConfigurationError: there is neither, or it is not a path or URL.
    """
    if place is None:
        if checkpoints is None:
            raise ConfigurationError(
                "the job has no place for checkpoints: say in which directory the savepoint is to be"
            )
        return checkpoints
    option = OPTIONS["checkpoints"]
    try:
        found: str = option.parse(place)
    except UnfitError:
        raise ConfigurationError(f"{place!r} is not {option.expects}, in which a savepoint could be") from None
    return found


def check_place(settings: Settings, services: Services) -> None:
    """Raise an error for a checkpoint place that cannot be used.

    Raises:
        CheckpointError: it cannot be written.
        ConfigurationError: the kind of place is unknown, or its package is missing.
    """
    if settings.checkpoints is not None:
        services.checkpoint_storage(settings.checkpoints).check()


def check_savepoint_place(place: str, services: Services) -> None:
    """Raise an error for a place in which no savepoint can be written.

    Raises:
        CheckpointError: it cannot be written.
        ConfigurationError: it is no path or URL, the kind of place is unknown, or its package is missing.
    """
    services.checkpoint_storage(savepoint_place(place, None)).check()
