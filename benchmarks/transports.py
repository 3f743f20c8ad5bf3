"""Buffers and messages from one process to another over each transport, beside a pipe and a copy in shared memory.

Both ends do what a worker does: a loop, a carrier, network buffers that are written anew each time. At most
``WINDOW`` buffers are on their way at a time, as credit would have it. Nobody looks at what is in them: what is
measured is how they get there. All ways are measured in turn, so that what else the machine does meets them all.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness import Plan, Row
from sluiceway.plugins import default_manager
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.transport.buffers import NetworkBufferPool
from sluiceway.transport.carrier import Carrier, CarrierContext, Link, Payload

__all__ = ["measure"]

SIZES = {"32 KiB": 1 << 15, "1 MiB": 1 << 20}
WINDOW = 16
NEEDS = {"shm": "", "zmq": "zmq"}

_BUFFER = b"b"
_TAKEN = b"t"
_PING = b"p"
_END = b"e"

Way = Callable[[int, int, int], tuple[float, float]]
"""Bytes of a buffer, buffers, pings: microseconds for each of both."""


def measure(plan: Plan) -> Iterator[Row]:
    total = plan.size(1 << 28, 1 << 22)
    pings = plan.size(5_000, 20)
    ways: dict[str, Way] = {"copied": _copy, "pipe": _pipe}
    missing: list[str] = []
    for transport, library in NEEDS.items():
        if not library or find_spec(library) is not None:
            ways[transport] = _carrying(transport)
        else:
            missing.append(transport)
    if "zmq" in ways:
        ways["bare pyzmq"] = _push
    for name, size in SIZES.items():
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(plan.runs):
            for way, run in ways.items():
                times[way].append(run(size, total // size, 0)[0])
        for way in ways:
            yield _row(f"a buffer of {name}: {way}", size, way, times)
        for transport in missing:
            yield Row(f"a buffer of {name}: {transport}", "us", (), note=f"{NEEDS[transport]} is not installed")
    backs: dict[str, list[float]] = {way: [] for way in ways if way != "copied"}
    for _ in range(plan.runs):
        for way, measured in backs.items():
            measured.append(ways[way](64, 0, pings)[1])
    for way, measured in backs.items():
        yield Row(f"there and back: {way}", "us", tuple(measured))
    for transport in missing:
        yield Row(f"there and back: {transport}", "us", (), note=f"{NEEDS[transport]} is not installed")


def _row(name: str, size: int, way: str, times: dict[str, list[float]]) -> Row:
    """A row of the microseconds per buffer; ratios are those within a round, when the machine did the same."""
    notes = [f"{size / statistics.median(times[way]) / 1e3:.2f} GB/s"]
    for other, what in (("copied", "a copy"), ("pipe", "a pipe"), ("bare pyzmq", "bare pyzmq")):
        if other in times and way not in ("copied", other) and (other != "bare pyzmq" or way == "zmq"):
            ratio = statistics.median(b / a for a, b in zip(times[way], times[other], strict=True))
            notes.append(f"{ratio:.2f} of the speed of {what}")
    return Row(name, "us", tuple(times[way]), note=", ".join(notes), details={"bytes": size})


def _us_each(began: float, count: int) -> float:
    return (time.perf_counter() - began) / count * 1e6 if count else 0.0


# ---- what they are beside ----------------------------------------------------------------------------------


def _copy(size: int, buffers: int, pings: int) -> tuple[float, float]:
    """Into memory that another process has mapped, as many pieces in turn as are on their way otherwise."""
    here, there = socket.socketpair()
    file = os.memfd_create("benchmark")
    os.ftruncate(file, size * WINDOW)
    with here, there, mmap.mmap(file, size * WINDOW) as shared, memoryview(shared) as memory:
        socket.send_fds(here, [b"f"], [file])
        with _other(_copys_other_end, there, size * WINDOW):
            here.recv(1)
            memory[:] = bytes(size * WINDOW)
            data = bytes(size)
            began = time.perf_counter()
            for n in range(buffers):
                at = n % WINDOW * size
                memory[at : at + size] = data
            each = _us_each(began, buffers)
            here.send(_END)
    os.close(file)
    return each, 0.0


def _copys_other_end(there: socket.socket, size: int) -> None:
    _, (file,), _, _ = socket.recv_fds(there, 1, 1)
    with mmap.mmap(file, size, prot=mmap.PROT_READ):
        there.send(_PING)
        there.recv(1)
    os.close(file)


def _pipe(size: int, buffers: int, pings: int) -> tuple[float, float]:
    here, there = multiprocessing.Pipe()
    with _other(_pipes_other_end, there), here:
        there.close()
        here.send_bytes(_PING)
        here.recv_bytes()
        data = bytes(size)
        began = time.perf_counter()
        for _ in range(buffers):
            here.send_bytes(data)
        here.send_bytes(_PING)
        here.recv_bytes()
        each = _us_each(began, buffers)
        began = time.perf_counter()
        for _ in range(pings):
            here.send_bytes(_PING)
            here.recv_bytes()
        back = _us_each(began, pings)
        here.send_bytes(_END)
    return each, back


def _pipes_other_end(there: Connection) -> None:
    while (said := there.recv_bytes()) != _END:
        if said == _PING:
            there.send_bytes(said)


def _push(size: int, buffers: int, pings: int) -> tuple[float, float]:
    """PUSH to PULL and back by another pair, with pyzmq's defaults and the same number of messages under way."""
    import zmq

    with tempfile.TemporaryDirectory() as directory, _other(_pushs_other_end, directory):
        context = zmq.Context()
        push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        push.sndhwm = WINDOW // 2
        push.bind(f"ipc://{directory}/there")
        pull.bind(f"ipc://{directory}/back")
        push.send(_PING)
        pull.recv()
        data = bytes(size)
        began = time.perf_counter()
        for _ in range(buffers):
            push.send(data)
        push.send(_PING)
        pull.recv()
        each = _us_each(began, buffers)
        began = time.perf_counter()
        for _ in range(pings):
            push.send(_PING)
            pull.recv()
        back = _us_each(began, pings)
        push.send(_END)
        push.close()
        pull.close()
        context.term()
    return each, back


def _pushs_other_end(directory: str) -> None:
    import zmq

    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.rcvhwm = WINDOW // 2
    pull.connect(f"ipc://{directory}/there")
    push.connect(f"ipc://{directory}/back")
    while (said := pull.recv()) != _END:
        if said == _PING:
            push.send(said)
    push.close()
    pull.close()
    context.term()


# ---- the transports ----------------------------------------------------------------------------------------


class _Never:
    """Stands for a call with a delay: no end waits so long here."""

    def cancel(self) -> None:
        pass


def _never(action: Callable[[], None], after_s: float) -> _Never:
    return _Never()


class _End:
    """One end: a carrier, and a loop as small as one can be."""

    def __init__(self, transport: str, name: str, directory: str, accepted: Callable[[Link], None]) -> None:
        self._poller = SelectorPoller()
        self._soon: deque[Callable[[], None]] = deque()
        self.carrier: Carrier = default_manager().services().carrier(transport)
        self.address = self.carrier.start(
            CarrierContext(
                name,
                directory,
                b"s" * 32,
                self._poller.keep,
                self._poller.drop,
                self._soon.append,
                accepted,
                _never,
                print,
            )
        )

    def turn(self) -> None:
        soon = self._soon
        # What was waited for may come here, too: there is no sleeping after it.
        timeout_s = 0 if soon else None
        while soon:
            soon.popleft()()
        self._poller.poll(timeout_s)

    def close(self) -> None:
        self.carrier.close()
        self._poller.close()


def _carrying(transport: str) -> Way:
    return lambda size, buffers, pings: _carry(transport, size, buffers, pings)


def _carry(transport: str, size: int, buffers: int, pings: int) -> tuple[float, float]:
    here, there = multiprocessing.Pipe()
    with (
        tempfile.TemporaryDirectory() as directory,
        here,
        _other(_carriers_other_end, there, transport, directory),
    ):
        there.close()
        near = _End(transport, "near", directory, lambda link: None)
        taken = backs = 0

        def came(header: bytes, payload: Payload | None) -> None:
            nonlocal taken, backs
            if header == _TAKEN:
                taken += 1
            else:
                backs += 1

        def ping() -> None:
            wanted = backs + 1
            link.send(_PING)
            while backs < wanted:
                near.turn()

        pool = NetworkBufferPool(near.carrier.segments(WINDOW, size)).create_pool(1, on_available=lambda: None)
        link = near.carrier.connect("far", here.recv())
        link.on_frame = came
        data = bytes(size)

        def send(count: int) -> None:
            nonlocal taken
            taken = 0
            for sent in range(count):
                while sent - taken >= WINDOW or not pool.available:
                    near.turn()
                buffer = pool.request()
                assert buffer is not None
                buffer.memory[:size] = data
                buffer.size = size
                link.send(_BUFFER, buffer)
            ping()

        send(2 * WINDOW)  # memory that has never been written costs more, once
        began = time.perf_counter()
        send(buffers)
        each = _us_each(began, buffers)
        began = time.perf_counter()
        for _ in range(pings):
            ping()
        back = _us_each(began, pings)
        link.send(_END)
        near.turn()
        here.recv()
        near.close()
    return each, back


def _carriers_other_end(there: Connection, transport: str, directory: str) -> None:
    ended = False

    def accepted(link: Link) -> None:
        def came(header: bytes, payload: Payload | None) -> None:
            nonlocal ended
            if payload is not None:
                payload.release()
                link.send(_TAKEN)
            elif header == _PING:
                link.send(_PING)
            else:
                ended = True

        link.on_frame = came

    far = _End(transport, "far", directory, accepted)
    far.carrier.segments(1, 64)
    there.send(far.address)
    while not ended:
        far.turn()
    there.send(None)
    far.close()


class _other:  # noqa: N801 - used as a function
    """Another process, until it has ended."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=target, args=arguments, daemon=True)

    def __enter__(self) -> None:
        self._process.start()

    def __exit__(self, *_: object) -> None:
        self._process.join()
        self._process.close()
