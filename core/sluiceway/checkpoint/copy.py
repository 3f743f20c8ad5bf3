"""Copies of saved state from one checkpoint into another, without unpickling and without the job's classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from sluiceway.checkpoint.metadata import OperatorEntry, Section
from sluiceway.checkpoint.restore import StateReader
from sluiceway.checkpoint.state_file import SectionWriter, write_rows
from sluiceway.keygroups import key_groups
from sluiceway.serializers import Block, Row, decode_blocks, encode_rows
from sluiceway.state import KeyedSnapshot, StateMeta

__all__ = ["copy_operator", "copy_section", "regrouped", "without_tables"]

_BROADCAST: Final = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
_raw: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def copy_section(writer: SectionWriter, reader: StateReader, section: Section | None) -> Section | None:
    """Copy a section into another file. Raises CheckpointError if it is damaged."""
    return None if section is None else writer.add(reader.bytes_of(section), section.count)


def copy_operator(
    writer: SectionWriter,
    reader: StateReader,
    entry: OperatorEntry,
    keyed: KeyedSnapshot | None,
    dropped: Collection[str] = (),
) -> Generator[None, None, OperatorEntry]:
    """Copy the state of an operator in one subtask.

    Args:
        writer: writes the new file.
        reader: reads the old ones.
        entry: entry of the operator in the metadata.
        keyed: the keyed state, with rows; None: it is left out.
        dropped: names of operator and broadcast state that is left out.
    """
    kept = None if keyed is None else (yield from write_rows(writer, keyed))
    lists = []
    for one in entry.lists:
        if one.name not in dropped:
            lists.append(msgspec.structs.replace(one, elements=copy_section(writer, reader, one.elements)))
            yield
    broadcast = None
    if entry.broadcast is not None:
        states = [pair for pair in reader.decoded(entry.broadcast, _BROADCAST) if pair[0] not in dropped]
        broadcast = writer.add(_encode(states), len(states)) if states else None
        yield
    copied: dict[str, Any] = {}
    for name in ("splits", "pending", "committables"):
        copied[name] = copy_section(writer, reader, getattr(entry, name))
        yield
    return msgspec.structs.replace(entry, keyed=kept, lists=tuple(lists), broadcast=broadcast, **copied)


def without_tables(snapshot: KeyedSnapshot, dropped: Collection[str]) -> KeyedSnapshot:
    """Return keyed state without some of its tables, filtered when it is read."""
    left = [index for index, meta in enumerate(snapshot.tables) if meta.name not in dropped]
    if len(left) == len(snapshot.tables):
        return snapshot
    tables = tuple(snapshot.tables[index] for index in left)
    # Rows refer to tables by index.
    places = {old: new for new, old in enumerate(left)}

    def filtered(data: bytes) -> bytes:
        rows, blocks = decode_blocks(data)
        return encode_rows(
            [row._replace(table=places[row.table]) for row in rows if row.table in places],
            [block._replace(table=places[block.table]) for block in blocks if block.table in places],
        )

    return KeyedSnapshot(tables, _Changed(snapshot.groups, filtered), None, snapshot.on_release)


def regrouped(
    snapshots: Iterable[KeyedSnapshot], max_parallelism: int, load_key: Callable[[bytes], Any]
) -> KeyedSnapshot:
    """Return the keyed state of an operator in another number of key groups. Holds all of it in memory, encoded.

    Args:
        snapshots: the snapshots of all its subtasks.
        max_parallelism: the number of key groups.
        load_key: decodes a key.
    """
    tables: dict[StateMeta, int] = {}
    rows: dict[int, list[Row]] = {}
    blocks: dict[int, list[Block]] = {}
    for snapshot in snapshots:
        # Rows refer to tables by index, which differs from subtask to subtask; a state may be there in two forms.
        places = [tables.setdefault(meta, len(tables)) for meta in snapshot.tables]
        for old in snapshot.groups:
            own, of_many = decode_blocks(snapshot.groups[old])
            for row, group in zip(
                own, key_groups([load_key(row.key) for row in own], max_parallelism), strict=True
            ):
                rows.setdefault(group, []).append(row._replace(table=places[row.table]))
            for block in of_many:
                for group, part in _split(block, max_parallelism, load_key):
                    blocks.setdefault(group, []).append(part._replace(table=places[block.table]))
    groups = {g: encode_rows(rows.get(g, []), blocks.get(g, ())) for g in sorted({**rows, **blocks})}
    return KeyedSnapshot(tuple(tables), groups)


def _split(block: Block, max_parallelism: int, load_key: Callable[[bytes], Any]) -> Iterator[tuple[int, Block]]:
    # Raw: keys are decoded for their key group only, and values not at all.
    keys, values = _raw(block.keys), _raw(block.values)
    places: dict[int, list[int]] = {}
    for place, group in enumerate(key_groups([load_key(bytes(key)) for key in keys], max_parallelism)):
        places.setdefault(group, []).append(place)
    for group, own in places.items():
        yield (
            group,
            block._replace(
                keys=_encode([keys[place] for place in own]), values=_encode([values[place] for place in own])
            ),
        )


class _Changed(Mapping[int, bytes]):
    """Key groups that are changed when they are read."""

    def __init__(self, groups: Mapping[int, bytes], change: Callable[[bytes], bytes]) -> None:
        self._groups = groups
        self._change = change

    def __getitem__(self, group: int) -> bytes:
        return self._change(self._groups[group])

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)
