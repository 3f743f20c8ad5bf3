"""Checkpoints that somebody else may have written are not unpickled without consent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint import METADATA
from sluiceway.errors import ConfigurationError

COUNT = 1_000


def flow_of() -> tuple[sw.Pipeline, Any]:
    flow = sw.Pipeline("counted")
    keyed = flow.from_collection(range(COUNT)).key_by(lambda value: value % 5)
    return flow, keyed.count().uid("count").collect()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The directory of a checkpoint."""
    flow, _ = flow_of()
    flow.run(checkpoints=str(tmp_path / "kept"), checkpoint_interval="1h")
    (metadata,) = (tmp_path / "kept").rglob(METADATA)
    return metadata.parent


def test_ones_own_checkpoint_is_restored(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept.parent.chmod(0o770)  # a group of one's own, as many systems have it
    flow, out = flow_of()
    flow.run(from_checkpoint=str(kept))
    assert not out, "that run had come to its end"
    assert "pickled" not in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("what", ["metadata", "directory", "above"])
def test_what_everybody_may_write_is_refused_unless_allowed(what: str, workers: int, kept: Path) -> None:
    place = {"metadata": kept / METADATA, "directory": kept, "above": kept.parent}[what]
    place.chmod(0o666 if what == "metadata" else 0o777)
    flow, _ = flow_of()
    with pytest.raises(ConfigurationError, match=r"every user may write to .* with --allow-pickles") as caught:
        flow.run(from_checkpoint=str(kept), workers=workers)
    assert str(place) in str(caught.value)
    flow.run(from_checkpoint=str(kept), allow_pickles=True, workers=workers)


def test_what_belongs_to_somebody_else_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("files are given to another user by root alone")
    os.chown(kept, 12_345, -1)
    flow, _ = flow_of()
    with pytest.raises(ConfigurationError, match=r"belongs to another user \(uid 12345\)"):
        flow.run(from_checkpoint=str(kept))


def test_a_directory_with_the_sticky_bit_above_it_is_fine(kept: Path) -> None:
    kept.parent.chmod(0o1777)
    flow, _ = flow_of()
    flow.run(from_checkpoint=str(kept))


def test_where_it_cannot_be_known_there_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    place = "memory://foreign-checkpoints/kept"
    flow, _ = flow_of()
    flow.run(checkpoints=place, checkpoint_interval="1h")
    for options, warns in (
        ({}, True),
        ({"allow_pickles": True}, False),
        ({"checkpoints": place}, False),
    ):
        caplog.clear()
        flow, _ = flow_of()
        flow.run(from_checkpoint=place, **options)
        assert ("it must come from somebody you trust" in caplog.text) is warns
