"""Time zones of a Spark session as those that Python and pyarrow know."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

__all__ = ["python_zone", "with_python_zones"]

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?\d{2})?")

# Of java.time.ZoneId.SHORT_IDS, those that the database of time zones lacks.
_SHORT: Final = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "UT": "UTC",
    "VST": "Asia/Ho_Chi_Minh",
    "Z": "UTC",
}


def python_zone(name: str) -> str:
    """Return the name for Python of what ``spark.sql.session.timeZone`` may be: ``+08:00`` for ``GMT+8``."""
    if (offset := _OFFSET.fullmatch(name)) is not None:
        sign, hours, minutes = offset.groups()
        return f"{sign}{hours:0>2}:{minutes or '00'}"
    return _SHORT.get(name, name)


@lru_cache(1024)
def with_python_zones(kind: Any) -> Any:
    """Return an Arrow type with zones that Python knows, of nested timestamps too; None: it has no others."""
    return _zoned(kind) if _has_other_zone(kind) else None


def _has_other_zone(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return kind.tz is not None and python_zone(kind.tz) != kind.tz
    if pa.types.is_map(kind):
        return _has_other_zone(kind.key_type) or _has_other_zone(kind.item_type)
    if pa.types.is_struct(kind):
        return any(_has_other_zone(field.type) for field in kind)
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _has_other_zone(kind.value_type)


def _zoned(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, python_zone(kind.tz))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_zoned(kind.key_type)), _field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    return pa.large_list(_field(kind.value_field)) if pa.types.is_large_list(kind) else kind


def _field(field: Any) -> Any:
    # Nullable: pyarrow does not cast a struct that is null to one whose fields take none.
    return field.with_type(_zoned(field.type)).with_nullable(True)
