"""Conformance suite for checkpoint storages.

In a plugin's tests::

    from sluiceway.testing.conformance.checkpoint_storage import CheckpointStorageConformance

    class TestMyStorage(CheckpointStorageConformance):
        def make_storage(self):
            return MyStorage(self.location)
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

import pickle
from collections.abc import Iterator
from os import utime
from pathlib import Path
from threading import Thread
from time import time

import pytest

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError

__all__ = ["CheckpointStorageConformance"]


class _BreakingOffError(Exception):
    pass


class CheckpointStorageConformance:
    """Suite of checkpoint storages.

    Subclass it, give it a name that pytest collects, and implement :meth:`make_storage`.

    Attributes:
        big_bytes: size of the largest file that is tried.
        tells_time: whether files say when they were written.
    """

    big_bytes: int = 5 << 20
    tells_time: bool = True

    def make_storage(self) -> CheckpointStorage:
        """Return a storage over the test's own location, the same for all calls within a test, empty at first."""
        raise NotImplementedError(f"{type(self).__name__} must implement make_storage()")

    @pytest.fixture(autouse=True)
    def _make(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path

    @property
    def storage(self) -> CheckpointStorage:
        """A new one each time: nothing may depend on what one object remembers."""
        return self.make_storage()

    def names(self, directory: str = "") -> list[str]:
        """Return the files there are."""
        return sorted(file.name for file in self.storage.files(directory))

    # -- files -----------------------------------------------------------------------------------------------

    def test_a_file_is_what_was_written(self) -> None:
        assert self.storage.write("run/chk-1/a.state", (b"one ", b"", b"two")) == 7
        assert self.storage.read("run/chk-1/a.state") == b"one two"
        assert self.names() == ["run/chk-1/a.state"]

    def test_a_part_of_a_file(self) -> None:
        self.storage.write("a", (b"0123456789",))
        storage = self.storage
        assert storage.read("a", 2, 3) == b"234"
        assert storage.read("a", 0, 2) == b"01"
        assert storage.read("a", 7) == b"789"
        assert storage.read("a", 7, 100) == b"789"
        assert storage.read("a", 4, 0) == b""

    def test_files_empty_and_big(self) -> None:
        data = bytes(range(256)) * (self.big_bytes // 256)
        storage = self.storage
        assert storage.write("empty", ()) == 0
        assert storage.write("big", (data[i : i + 100_000] for i in range(0, len(data), 100_000))) == len(data)
        assert storage.read("empty") == b""
        assert storage.read("big") == data
        assert {file.name: file.size for file in storage.files()} == {"empty": 0, "big": len(data)}

    def test_a_file_can_be_replaced(self) -> None:
        self.storage.write("d/a", (b"a long one",))
        self.storage.write("d/a", (b"new",))
        assert self.storage.read("d/a") == b"new"
        assert self.names() == ["d/a"]

    def test_a_file_that_is_there_is_not_created_again(self) -> None:
        assert self.storage.create("d/a", (b"the ", b"first"))
        assert not self.storage.create("d/a", (b"another",))
        assert self.storage.read("d/a") == b"the first"
        assert self.names() == ["d/a"]
        self.storage.write("d/b", (b"written",))
        assert not self.storage.create("d/b", (b"another",))
        self.storage.delete(["d/a"])
        assert self.storage.create("d/a", ())
        assert self.storage.read("d/a") == b""

    def test_what_is_not_there_cannot_be_read(self) -> None:
        with pytest.raises(CheckpointError, match=r"cannot read .*nothing/a\.state") as caught:
            self.storage.read("nothing/a.state")
        assert isinstance(caught.value.__cause__, FileNotFoundError)

    def test_an_empty_place_has_no_files(self) -> None:
        assert self.names() == self.names("run/chk-1") == []

    def test_a_listing_is_of_one_directory_and_those_below(self) -> None:
        for name in ("a/b/one", "a/b/c/two", "a/bc/three", "ab/four"):
            self.storage.write(name, (b"x",))
        assert self.names("a/b") == ["a/b/c/two", "a/b/one"]
        assert self.names("a") == ["a/b/c/two", "a/b/one", "a/bc/three"]
        assert self.names() == ["a/b/c/two", "a/b/one", "a/bc/three", "ab/four"]

    def test_a_listing_tells_when_files_were_written(self) -> None:
        before = time() * 1000
        self.storage.write("a", (b"x",))
        [file] = self.storage.files()
        if self.tells_time:
            # A storage may go by the clock of its server.
            assert before - 5000 <= file.modified_ms <= time() * 1000 + 5000
        else:
            assert file.modified_ms == 0

    def test_names_may_have_letters_of_any_script(self) -> None:
        """Names of jobs are parts of them."""
        names = ["Z\u00e4hler-1/chk-1/a.state", "\u8a08\u7b97_2/b", "\u0441\u0447\u0451\u0442/c"]
        for name in names:
            self.storage.write(name, (name.encode(),))
        assert self.names() == sorted(names)
        assert [self.storage.read(name) for name in names] == [name.encode() for name in names]
        assert self.names("\u8a08\u7b97_2") == ["\u8a08\u7b97_2/b"]
        self.storage.delete(names[1:])
        assert self.names() == names[:1]

    def test_files_can_be_deleted_and_missing_ones_are_no_error(self) -> None:
        for name in ("d/a", "d/b", "e/c"):
            self.storage.write(name, (b"x",))
        self.storage.delete(["d/a", "d/never", "nowhere/at-all", "e/c"])
        assert self.names() == ["d/b"]
        self.storage.delete(iter(["d/b"]))
        self.storage.delete(["d/b"])
        assert self.names() == []
        self.storage.write("d/a", (b"again",))
        assert self.names() == ["d/a"]

    def test_a_directory_is_deleted_with_all_below_it(self) -> None:
        for name in ("run/chk-1/a", "run/chk-1/b/c", "run/chk-10/a", "run/shared/d"):
            self.storage.write(name, (b"x",))
        self.storage.delete_directory("run/chk-1")
        self.storage.delete_directory("run/chk-2")
        assert self.names() == ["run/chk-10/a", "run/shared/d"]
        with pytest.raises(CheckpointError):
            self.storage.read("run/chk-1/a")

    @pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../../b", ".", "a/.", "a\0b"])
    def test_names_do_not_lead_out_of_the_place(self, name: str) -> None:
        storage = self.storage
        for call in (
            lambda: storage.write(name, (b"x",)),
            lambda: storage.read(name),
            lambda: storage.delete([name]),
        ):
            with pytest.raises(CheckpointError, match="no name of a file"):
                call()

    # -- all at once -----------------------------------------------------------------------------------------

    def test_a_write_that_breaks_off_leaves_nothing_under_its_name(self) -> None:
        def parts() -> Iterator[bytes]:
            yield b"x" * 100
            raise _BreakingOffError

        self.storage.write("old", (b"old",))
        for name in ("new", "old", "d/new"):
            with pytest.raises(_BreakingOffError):
                self.storage.write(name, parts())
        assert self.storage.read("old") == b"old"
        with pytest.raises(CheckpointError):
            self.storage.read("new")
        assert self.names() == ["old"]

    def test_nothing_is_to_be_seen_before_the_end(self) -> None:
        def parts() -> Iterator[bytes]:
            yield b"x" * self.big_bytes
            with pytest.raises(CheckpointError):
                self.storage.read("new")
            assert self.storage.read("old") == b"old"
            yield b"y"

        self.storage.write("old", (b"old",))
        self.storage.write("new", parts())
        self.storage.write("old", parts_of_old(self.storage))
        assert self.storage.read("old") == b"newer"
        assert self.names() == ["new", "old"]

    def test_threads_write_at_the_same_time(self) -> None:
        storage = self.storage

        def write(i: int) -> None:
            for j in range(10):
                storage.write(f"d{i % 2}/{i}-{j}", (b"%d" % i,) * 10)
                storage.delete([f"d{i % 2}/{i}-{j - 1}"] if j else [])
                storage.write("same", (b"%d" % i,) * 1000)

        threads = [Thread(target=write, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.names() == sorted([*(f"d{i % 2}/{i}-9" for i in range(6)), "same"])
        assert storage.read("same") in {b"%d" % i * 1000 for i in range(6)}

    # -- local files -----------------------------------------------------------------------------------------

    def test_local_files_can_be_put_and_fetched(self) -> None:
        source, target = self.tmp_path / "source.bin", self.tmp_path / "target.bin"
        data = bytes(range(256)) * 10_000
        source.write_bytes(data)
        assert self.storage.put_file("shared/s.sst", str(source)) == len(data)
        assert self.storage.put_file("shared/s.sst", str(source)) == len(data)
        source.unlink()
        assert self.storage.read("shared/s.sst") == data
        assert self.names() == ["shared/s.sst"]
        self.storage.fetch_file("shared/s.sst", str(target))
        self.storage.delete(["shared/s.sst"])
        assert target.read_bytes() == data
        with pytest.raises(CheckpointError, match=r"shared/s\.sst") as caught:
            self.storage.fetch_file("shared/s.sst", str(self.tmp_path / "other"))
        assert isinstance(caught.value.__cause__, FileNotFoundError)

    def test_a_file_that_was_put_is_as_old_as_it_is_here(self) -> None:
        """Old files that belong to no checkpoint may be deleted: a new file must not look like one."""
        source = self.tmp_path / "source.bin"
        source.write_bytes(b"x")
        before = time() * 1000
        utime(source, (before / 1000 - 86_400, before / 1000 - 86_400))
        self.storage.put_file("s.sst", str(source))
        [file] = self.storage.files()
        age_s = (before - file.modified_ms) / 1000
        assert not self.tells_time or age_s <= 5, (
            f"put_file() has kept the time of the local file, {age_s:,.0f} s ago"
        )

    # -- other processes -------------------------------------------------------------------------------------

    def test_what_other_processes_do_is_seen_at_once(self) -> None:
        """Workers write, the job manager lists and deletes: a storage remembers nothing of what it has seen."""
        storage = self.storage
        other: CheckpointStorage = pickle.loads(pickle.dumps(storage))

        def seen() -> dict[str, bytes]:
            return {file.name: storage.read(file.name) for file in storage.files()}

        storage.write("d/a", (b"first",))
        assert seen() == {"d/a": b"first"}
        other.write("d/a", (b"second one",))
        other.write("d/b", (b"new",))
        assert seen() == {"d/a": b"second one", "d/b": b"new"}
        assert {file.name: file.size for file in storage.files("d")} == {"d/a": 10, "d/b": 3}
        other.delete(["d/a"])
        assert seen() == {"d/b": b"new"}
        with pytest.raises(CheckpointError):
            storage.read("d/a")
        assert storage.create("d/a", (b"third",))
        other.delete_directory("d")
        assert seen() == {}

    def test_it_can_be_sent_to_other_processes(self) -> None:
        storage = self.storage
        storage.write("a", (b"x",))
        copy: CheckpointStorage = pickle.loads(pickle.dumps(storage))
        assert copy.location == storage.location
        assert copy.read("a") == b"x"

    def test_messages_call_files_by_their_place(self) -> None:
        storage = self.storage
        assert storage.shown("run/a") == f"{storage.location.rstrip('/')}/run/a"


def parts_of_old(storage: CheckpointStorage) -> Iterator[bytes]:
    """Parts of a new content; while they are taken, the old one is there."""
    yield b"new"
    assert storage.read("old") == b"old"
    yield b"er"
