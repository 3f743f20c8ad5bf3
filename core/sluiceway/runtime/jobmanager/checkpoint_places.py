"""Places for checkpoints and savepoints of a job: their defaults, and whether they can be used."""

from __future__ import annotations

from sluiceway.config.options import OPTIONS, UnfitError
from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.errors import CheckpointError, ConfigurationError, SluicewayError
from sluiceway.runtime.failures.error_texts import describe

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
        _check(settings.checkpoints, services)


def check_savepoint_place(place: str, services: Services) -> None:
    """Raise an error for a place in which no savepoint can be written.

    Raises:
        CheckpointError: it cannot be written.
        ConfigurationError: it is no path or URL, the kind of place is unknown, or its package is missing.
    """
    _check(savepoint_place(place, None), services)


def _check(location: str, services: Services) -> None:
    storage = services.checkpoint_storage(location)
    try:
        storage.check()
    except SluicewayError:
        raise
    except Exception as error:  # a plugin's storage may raise what its library does
        raise CheckpointError(
            f"checkpoints cannot be kept in {location}: {type(storage).__name__} raised {describe(error)}"
        ) from error
