"""Time to live of state."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from sluiceway.config.options import duration_ms
from sluiceway.util.name_hints import Hinting, HintingType

__all__ = ["StateTtlConfig"]


class _UpdateType(Enum):
    """Kind of access that renews an entry."""

    DISABLED = "disabled"
    """Nothing: the state lives for ever, as without a time to live."""
    ON_CREATE_AND_WRITE = "on_create_and_write"
    """Writing it."""
    ON_READ_AND_WRITE = "on_read_and_write"
    """Writing and reading it."""


class _StateVisibility(Enum):
    """Visibility of entries that have expired."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    """Nothing, as if it had been cleared."""
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"
    """The entry, if it is still there; the read itself then cleans it up."""


@dataclass(frozen=True)
class StateTtlConfig(Hinting, metaclass=HintingType):
    """Time to live of keyed state, after which entries without access expire.

    Time is processing time, and passes while a job is down. Each element of a list and each entry of a map
    expires by itself; of the other kinds, the key's value does. An entry has expired when ``ttl`` has passed
    since its last access. Expired entries are removed when they are read, and in the background by the
    three options of cleanup, two of which may be combined.

    The time of the last access is saved with the state. ``ttl`` and all options may be changed between two runs
    of a job; a time to live may not be added or removed (a restore is refused).

    Attributes:
        ttl: a timedelta, a whole number of ms, or a text such as ``"90s"`` or ``"2h"``; more than 0. Kept in
            ms.
        update_type: the access that renews an entry: ``StateTtlConfig.UpdateType.ON_CREATE_AND_WRITE`` (the
            default), ``ON_READ_AND_WRITE``, or ``DISABLED`` for state that never expires; or one of these
            words in lower case.
        state_visibility: ``StateTtlConfig.StateVisibility.NEVER_RETURN_EXPIRED`` (the default) or
            ``RETURN_EXPIRED_IF_NOT_CLEANED_UP``; or one of these words in lower case.
        cleanup_full_snapshot: remove all expired entries whenever a snapshot is taken, so that it has none.
        cleanup_incrementally: the number of other keys to check for each access to the state, in turn; 0: none.
            A few dozen keys are checked at a time.
        cleanup_in_compaction: let the state backend drop expired entries when it compacts its
            files. Refused by the backends that come with Sluiceway, ``rocksdb`` included.

    Raises:
        ValueError: an invalid duration, an unknown word, a negative number.
        TypeError: an argument of another type.
    """

    ttl: timedelta | int | str
    update_type: _UpdateType | str = _UpdateType.ON_CREATE_AND_WRITE
    state_visibility: _StateVisibility | str = _StateVisibility.NEVER_RETURN_EXPIRED
    cleanup_full_snapshot: bool = field(default=False, kw_only=True)
    cleanup_incrementally: int = field(default=5, kw_only=True)
    cleanup_in_compaction: bool = field(default=False, kw_only=True)

    UpdateType = _UpdateType
    StateVisibility = _StateVisibility

    def __post_init__(self) -> None:
        try:
            ms = duration_ms(self.ttl)
        except ValueError as error:
            raise ValueError(f"StateTtlConfig: ttl: {error}; give a timedelta, ms, or a text as in '2h'") from None
        if ms == 0:
            raise ValueError("StateTtlConfig: ttl must be more than 0; give none to state that lives for ever")
        size = self.cleanup_incrementally
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"StateTtlConfig: cleanup_incrementally takes a number of keys, not {size!r:.60}")
        if size < 0:
            raise ValueError(f"StateTtlConfig: cleanup_incrementally must be 0 or more, not {size}")
        for name in ("cleanup_full_snapshot", "cleanup_in_compaction"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"StateTtlConfig: {name} takes True or False, not {getattr(self, name)!r:.60}")
        object.__setattr__(self, "ttl", ms)
        object.__setattr__(self, "update_type", _word("update_type", _UpdateType, self.update_type))
        visibility = _word("state_visibility", _StateVisibility, self.state_visibility)
        object.__setattr__(self, "state_visibility", visibility)

    @property
    def ttl_ms(self) -> int:
        """Time to live of an entry, in ms."""
        assert isinstance(self.ttl, int)
        return self.ttl

    @property
    def is_enabled(self) -> bool:
        """True if entries expire at all."""
        return self.update_type is not _UpdateType.DISABLED

    @property
    def updates_on_read(self) -> bool:
        """True if reading renews an entry."""
        return self.update_type is _UpdateType.ON_READ_AND_WRITE

    @property
    def returns_expired(self) -> bool:
        """True if a read returns an expired entry that was not removed yet."""
        return self.state_visibility is _StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


def _word(option: str, kind: type[Enum], given: Any) -> Enum:
    if isinstance(given, kind):
        return given
    words = [member.value for member in kind]
    if given in words:
        return kind(given)
    raise ValueError(f"StateTtlConfig: {option} is one of {', '.join(words)}, not {given!r:.60}")
