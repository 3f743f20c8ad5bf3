"""Answers to names that people know and that are not here: not built yet, called otherwise, or mistyped."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, NoReturn

from sluiceway.errors import NotBuiltYetError

__all__ = ["KEYED_ONLY", "PIPELINE_LATER", "PIPELINE_OTHERWISE", "STREAM_LATER", "STREAM_OTHERWISE", "answer"]

KEYED_ONLY: Final = frozenset(
    {
        "reduce",
        "sum",
        "min",
        "max",
        "min_by",
        "max_by",
        "count",
        "aggregate",
        "interval_join",
        "asof_join",
        "window",
        "count_window",
    }
)

STREAM_LATER: Final[Mapping[str, str]] = {
    "cache": "caching a stream is",
}

STREAM_OTHERWISE: Final[Mapping[str, str]] = {
    "add_sink": "sink()",
    "time_window": 'key_by(...).window(TumblingEventTimeWindows("10s"))',
    "async_wait": "async_map()",
    "sink_to": "sink()",
    "set_uid": "uid()",
    "set_name": "name()",
    "foreach": "for_each()",
    "keyBy": "key_by()",
    "flatMap": "flat_map()",
    "partition_by_hash": "key_by()",
    "close_with": "iterate(), which returns a stream that has close_with(),",
}

PIPELINE_LATER: Final[Mapping[str, str]] = {
    "add_jars": "running on a JVM is",
    "register_job_listener": "job listeners outside plugins are",
}

PIPELINE_OTHERWISE: Final[Mapping[str, str]] = {
    "execute": "run()",
    "enable_checkpointing": "run(checkpoint_interval=...)",
    "execute_async": "start()",
    "add_source": "source()",
    "from_source": "source(source, watermark_strategy=...)",
    "read_text_file": 'source("files", ...)',
    "socket_text_stream": 'source("socket", host=..., port=...)',
    "set_parallelism": "Pipeline(name, parallelism=...)",
    "set_max_parallelism": "Pipeline(name, max_parallelism=...)",
    "set_buffer_timeout": "Pipeline(name, buffer_timeout=...)",
    "disable_operator_chaining": "Pipeline(name, chaining=False)",
    "get_execution_plan": "explain()",
    "union": "union() of a stream",
}


def answer(owner: object, name: str, later: Mapping[str, str], otherwise: Mapping[str, str]) -> NoReturn:
    """Raise what helps most for an attribute ``name`` that ``owner`` has not got.

    Raises:
        NotBuiltYetError: it has a place in the design.
        AttributeError: everything else, with the name to use where there is one.
    """
    kind = type(owner).__name__
    if name in later:
        raise NotBuiltYetError(f"{kind}.{name}(): {later[name]} not built yet in this version")
    if name in otherwise:
        raise AttributeError(f"{kind} has no {name}(); use {otherwise[name]} instead")
    hint = ""
    if not name.startswith("_"):
        public = [n for n in dir(type(owner)) if not n.startswith("_")]
        close = get_close_matches(name, public, n=1)
        hint = f". Did you mean {close[0]!r}?" if close else f". It has: {', '.join(public)}"
    raise AttributeError(f"{kind} has no attribute {name!r}{hint}")
