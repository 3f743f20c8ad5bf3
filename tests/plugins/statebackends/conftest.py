"""Backends for the tests of the RocksDB state backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, KeyedSnapshot

if TYPE_CHECKING:
    from sluiceway_rocksdb._backend import RocksDBKeyedBackend
    from sluiceway_rocksdb._options import RocksDBOptions

ALL = KeyGroupRange(0, 8)


@pytest.fixture
def options(tmp_path: Path) -> RocksDBOptions:
    from sluiceway_rocksdb._options import RocksDBOptions

    return RocksDBOptions(str(tmp_path / "databases"), cache=1 << 20)


@pytest.fixture
def make(options: RocksDBOptions) -> Iterator[Callable[..., RocksDBKeyedBackend]]:
    from sluiceway_rocksdb._backend import RocksDBKeyedBackend, RocksDBStateBackend

    made: list[RocksDBKeyedBackend] = []

    def backend(
        groups: KeyGroupRange = ALL, restore: list[KeyedSnapshot] | None = None, **changes: Any
    ) -> RocksDBKeyedBackend:
        context = BackendContext("uid-7", 3, groups, 8)
        keyed = RocksDBStateBackend(replace(options, **changes)).create_keyed(context)
        assert isinstance(keyed, RocksDBKeyedBackend)
        made.append(keyed)
        if restore is not None:
            keyed.restore(restore)
        return keyed

    yield backend
    for keyed in made:
        keyed.close()
