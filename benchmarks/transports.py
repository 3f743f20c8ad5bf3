"""Buffers and messages from one process to another over each transport, beside a pipe and a copy in shared memory.

Both ends do what a worker does: a loop, a carrier, network buffers that are written anew each time. At most
``WINDOW`` buffers are on their way at a time, as credit would have it. Nobody looks at what is in them: what is
measured is how they get there.
"""

from __future__ import annotations

import mmap
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness import Plan, Row
from sluiceway.buffers import NetworkBufferPool
from sluiceway.carrier import Carrier, CarrierContext, Link, Payload
from sluiceway.plugins import default_manager
from sluiceway.runtime.poller import SelectorPoller

__all__ = ["measure"]

SIZES = {"32 KiB": 1 << 15, "1 MiB": 1 << 20}
WINDOW = 16
NEEDS = {"shm": "", "zmq": "zmq"}

_BUFFER = b"b"
_TAKEN = b"t"
_PING = b"p"
_END = b"e"


def measure(plan: Plan) -> Iterator[Row]:
    total = plan.size(1 << 28, 1 << 22)
    pings = plan.size(5_000, 20)
    for name, size in SIZES.items():
        count = total // size
        copied = [_copy(size, count) for _ in range(plan.runs)]
        piped = [_pipe(size, count, 0)[0] for _ in range(plan.runs)]
        yield _row(f"a buffer of {name}: copied", size, copied, {})
        yield _row(f"a buffer of {name}: pipe", size, piped, {"a copy": copied})
        for transport, library in NEEDS.items():
            if _is_there(library):
                taken = [_carry(transport, size, count, 0)[0] for _ in range(plan.runs)]
                beside = {"a copy": copied, "a pipe": piped}
                yield _row(f"a buffer of {name}: {transport}", size, taken, beside)
            else:
                yield Row(f"a buffer of {name}: {transport}", "us", (), note=f"{library} is not installed")
    yield Row("there and back: pipe", "us", tuple(_pipe(64, 0, pings)[1] for _ in range(plan.runs)))
    for transport, library in NEEDS.items():
        if _is_there(library):
            times = tuple(_carry(transport, 64, 0, pings)[1] for _ in range(plan.runs))
            yield Row(f"there and back: {transport}", "us", times)
        else:
            yield Row(f"there and back: {transport}", "us", (), note=f"{library} is not installed")


def _is_there(library: str) -> bool:
    return not library or find_spec(library) is not None


def _row(name: str, size: int, times: list[float], beside: dict[str, list[float]]) -> Row:
    """A row of the microseconds per buffer."""
    each = statistics.median(times)
    notes = [f"{size / each / 1e3:.2f} GB/s"]
    notes += [f"{statistics.median(other) / each:.2f} of the speed of {what}" for what, other in beside.items()]
    return Row(name, "us", tuple(times), note=", ".join(notes), details={"bytes": size})


def _us_each(began: float, count: int) -> float:
    return (time.perf_counter() - began) / count * 1e6 if count else 0.0


# ---- what they are beside ----------------------------------------------------------------------------------


def _copy(size: int, count: int) -> float:
    """Into memory that another process could have mapped, as many pieces in turn as are on their way otherwise."""
    data = bytes(size)
    with mmap.mmap(-1, size * WINDOW) as shared, memoryview(shared) as memory:
        memory[:] = bytes(size * WINDOW)
        began = time.perf_counter()
        for n in range(count):
            at = n % WINDOW * size
            memory[at : at + size] = data
        return _us_each(began, count)


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


# ---- the transports ----------------------------------------------------------------------------------------


def _carry(transport: str, size: int, buffers: int, pings: int) -> tuple[float, float]:
    here, there = multiprocessing.Pipe()
    with (
        tempfile.TemporaryDirectory() as directory,
        here,
        _other(_carriers_other_end, there, transport, directory),
    ):
        there.close()
        poller = SelectorPoller()
        carrier, _ = _start(transport, "near", directory, poller, lambda link: None)
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
                poller.poll(None)

        pool = NetworkBufferPool(carrier.segments(2 * WINDOW, size)).create_pool(1, on_available=lambda: None)
        link = carrier.connect("far", here.recv())
        link.on_frame = came
        ping()
        data = bytes(size)
        began = time.perf_counter()
        for sent in range(buffers):
            while sent - taken >= WINDOW or not pool.available:
                poller.poll(None)
            buffer = pool.request()
            assert buffer is not None
            buffer.memory[:size] = data
            buffer.size = size
            link.send(_BUFFER, buffer)
        ping()
        each = _us_each(began, buffers)
        began = time.perf_counter()
        for _ in range(pings):
            ping()
        back = _us_each(began, pings)
        link.send(_END)
        here.recv()
        carrier.close()
        poller.close()
    return each, back


def _carriers_other_end(there: Connection, transport: str, directory: str) -> None:
    poller = SelectorPoller()
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

    carrier, address = _start(transport, "far", directory, poller, accepted)
    carrier.segments(1, 64)
    there.send(address)
    while not ended:
        poller.poll(None)
    there.send(None)
    carrier.close()
    poller.close()


def _start(
    transport: str, name: str, directory: str, poller: SelectorPoller, accepted: Any
) -> tuple[Carrier, str]:
    carrier = default_manager().services().carrier(transport)
    context = CarrierContext(name, directory, b"s" * 32, poller.keep, poller.drop, accepted)
    return carrier, carrier.start(context)


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
