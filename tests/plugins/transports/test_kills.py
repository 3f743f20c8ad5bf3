"""Workers that are killed leave nothing behind, and nobody waiting, whichever transport they use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENT_S

from sluiceway.elements import Batch
from sluiceway.network.credit import GateCredits
from sluiceway.plugins import default_manager
from sluiceway.testing.conformance.carrier import Party
from sluiceway.testing.conformance.channels import SERIALIZER
from sluiceway.transport import ChannelId
from sluiceway.transport.carrier import Carrier

CHILD = """
import sys
import time
from sluiceway.network.credit import GateCredits
from sluiceway.elements import Batch
from sluiceway.plugins import default_manager
from sluiceway.testing.conformance.carrier import Party
from sluiceway.testing.conformance.channels import SERIALIZER
from sluiceway.transport import ChannelId

role, transport, directory, address = sys.argv[1:]
carrier = default_manager().services().carrier(transport)
child = Party("child", carrier, {"parent": address}, directory, 8, 4096)
print(child.address, flush=True)
if role == "produces":
    channel = ChannelId("edge", 0, 0, producer_at="child", consumer_at="parent")
    sender = child.transport.sender(channel, lambda: None, SERIALIZER)
    while True:
        if sender.available():
            sender.send(Batch([bytes(3000)]))
        child.turn(0.01)
else:
    channel = ChannelId("edge", 0, 0, producer_at="parent", consumer_at="child")
    receiver = child.transport.receiver(channel, GateCredits().channel(), lambda: None, SERIALIZER)
    while True:  # takes nothing, so that the parent's buffers stay with it
        child.turn(0.01)
"""


def carrier(transport: str) -> Carrier:
    return default_manager().services().carrier(transport)


def channel(producer: str, consumer: str) -> ChannelId:
    return ChannelId("edge", 0, 0, producer_at=producer, consumer_at=consumer)


@pytest.fixture(params=["shm", "zmq"])
def transport(request: pytest.FixtureRequest) -> str:
    if request.param == "zmq":
        pytest.importorskip("zmq", reason="needs pyzmq")
    return str(request.param)


@pytest.fixture
def directory(transport: str) -> Iterator[Path]:
    """All that there is of this process besides it is as before in the end."""
    before = held()
    # Not tmp_path, which is too long for the name of a socket.
    with tempfile.TemporaryDirectory(prefix="sw-") as made:
        yield Path(made)
        for left in Path(made).iterdir():
            assert left.name == f"child.{transport}", "a killed worker's socket is all that its directory has"
            assert left.stat().st_mode & 0o777 == 0o600
    assert held() == before


def held() -> tuple[set[str], int, set[str]]:
    """Names of ours in shared memory; mappings and open files of this process that are network buffers."""
    mapped = Path("/proc/self/maps").read_text().count("memfd:sluiceway")
    files = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if "memfd" in target or target.startswith("socket:"):
            files.add(target)
    return {name for name in os.listdir("/dev/shm") if "sluiceway" in name}, mapped, files


class Child:
    def __init__(self, role: str, transport: str, directory: Path, address: str) -> None:
        command = [sys.executable, "-c", CHILD, role, transport, str(directory), address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def run(party: Party, until: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENT_S
    while not until():
        assert time.monotonic() < end, "it never happened"
        party.turn(0.01)


def test_a_producer_that_is_killed(transport: str, directory: Path) -> None:
    addresses: dict[str, str] = {}
    parent = Party("parent", carrier(transport), addresses, str(directory), 8, 4096)
    child = Child("produces", transport, directory, parent.address)
    try:
        addresses["child"] = child.address
        receiver = parent.transport.receiver(
            channel("child", "parent"), GateCredits().channel(), lambda: None, SERIALIZER
        )
        run(parent, lambda: receiver.queued() >= 2)
        child.kill()
        assert receiver.receive() == Batch([bytes(3000)])
        run(parent, lambda: not parent.transport._to_producers)
        while receiver.queued() > 1:
            assert receiver.receive() == Batch([bytes(3000)]), "what had come stays good"
        with pytest.raises(ConnectionError, match="'child'"):
            receiver.receive()
    finally:
        child.kill()
        parent.die()
        parent.poller.close()


def test_a_consumer_that_is_killed(transport: str, directory: Path) -> None:
    parent = Party("parent", carrier(transport), {}, str(directory), 8, 4096)
    child = Child("consumes", transport, directory, parent.address)
    try:
        sender = parent.transport.sender(channel("parent", "child"), lambda: None, SERIALIZER)
        run(parent, sender.available)
        for _ in range(5):
            sender.send(Batch([bytes(3000)]))
        run(parent, lambda: sender.backlog() == 0 or not sender.available())
        child.kill()
        run(parent, sender.available)
        assert parent.buffers.available == 8, "the dead give back what they had"
        sender.close()
    finally:
        child.kill()
        parent.die()
        parent.poller.close()


@pytest.mark.parametrize("transport", ["shm"], indirect=True)
def test_what_a_hung_consumer_was_lent_is_free_when_it_is_killed_and_not_before(
    transport: str, directory: Path
) -> None:
    parent = Party("parent", carrier(transport), {}, str(directory), 8, 4096)
    child = Child("consumes", transport, directory, parent.address)
    try:
        sender = parent.transport.sender(channel("parent", "child"), lambda: None, SERIALIZER)
        run(parent, sender.available)
        sender.send(Batch([bytes(3000)]))
        run(parent, lambda: sender.backlog() == 0)
        child.process.send_signal(signal.SIGSTOP)
        (link,) = parent.links
        link.close()
        sender.discard()
        for _ in range(10):
            parent.turn(0.01)
        assert parent.buffers.available == 7
        child.kill()
        run(parent, lambda: parent.buffers.available == 8)
    finally:
        child.kill()
        parent.die()
        parent.poller.close()
