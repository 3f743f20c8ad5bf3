"""What a simulation stands on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest

from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.runtime.messages.protocol import encode
from sluiceway.runtime.messages.workers import Heartbeat
from sluiceway.testing.simulation.background import SimulatedBackground
from sluiceway.testing.simulation.carrier import SimulatedCarrier
from sluiceway.testing.simulation.errors import SimulationError
from sluiceway.testing.simulation.loop import Node
from sluiceway.testing.simulation.streams import Pipe, SimulatedListener, SimulatedStream, connect
from sluiceway.testing.simulation.world import World
from sluiceway.transport.buffers import NetworkBufferPool
from sluiceway.transport.carrier import CarrierContext, Link, Payload


def world(seed: int = 1, most_s: float = 60.0) -> World:
    return World(seed, start_ms=5000, delay_us=(10, 5000), most_steps=1000, most_s=most_s)


def rest(world: World) -> None:
    world.run(lambda: False, 1_000_000)


def test_things_happen_in_the_order_of_their_time_and_the_clock_goes_with_them() -> None:
    here = world()
    happened: list[tuple[str, int]] = []

    def note(name: str) -> None:
        happened.append((name, here.clock.us))

    for name, us in (("late", 1500), ("early", 2), ("never", 2_000_000)):
        here.after(us, partial(note, name))
    assert here.run(lambda: len(happened) == 2)
    assert happened == [("early", 2), ("late", 1500)]
    assert here.clock.now_ms() == 5001
    assert not here.run(lambda: False, 1000)
    assert here.clock.monotonic() == 0.0025


def test_of_things_at_the_same_time_lot_decides() -> None:
    def order_of(seed: int) -> tuple[int, ...]:
        here = world(seed)
        order: list[int] = []
        for n in range(3):
            here.after(7, partial(order.append, n))
        here.run(lambda: len(order) == 3)
        return tuple(order)

    assert len({order_of(seed) for seed in range(20)}) > 3


def test_a_world_in_which_nothing_happens_is_told_of() -> None:
    with pytest.raises(SimulationError, match="nothing is left that could happen"):
        world().run(lambda: False)


def test_what_is_put_into_a_pipe_comes_out_in_order_and_a_crash_keeps_the_beginning() -> None:
    kept = set()
    for seed in range(30):
        here = world(seed)
        out: list[int] = []
        pipe = Pipe(here, out.append)
        for n in range(5):
            pipe.put(n)
        if seed % 3 == 0:
            lost = pipe.cut()
            assert sorted(lost) == list(range(5 - len(lost), 5))
        rest(here)
        assert out == list(range(len(out)))
        assert seed % 3 == 0 or len(out) == 5
        kept.add(len(out))
    assert len(kept) > 3


def pair(here: World) -> tuple[SimulatedStream, SimulatedStream]:
    worker, manager = Node(here, "worker-1"), Node(here, "job manager")
    listener = SimulatedListener(manager)
    ours = connect(worker, listener)
    theirs, _ = listener.accept()
    return ours, theirs


def hello(stream: SimulatedStream) -> None:
    """A frame that is a message, since the trace wants to name it."""
    data = encode(Heartbeat(1))
    stream.send(memoryview(len(data).to_bytes(4, "big") + data))


def test_a_stream_carries_bytes_and_ends() -> None:
    here = world()
    ours, theirs = pair(here)
    with pytest.raises(BlockingIOError):
        theirs.recv(10)
    hello(ours)
    ours.close()
    rest(here)
    assert len(theirs.recv(3)) == 3
    while theirs.recv(1000):
        pass
    with pytest.raises(BrokenPipeError):
        hello(theirs)
    with pytest.raises(OSError, match="closed") as raised:
        ours.send(memoryview(b"more"))
    assert raised.value.errno == errno.EBADF
    assert [event.what for event in here.trace] == ["is told by worker-1: Heartbeat"]


def test_the_stream_of_a_process_that_crashes_breaks_off() -> None:
    heard = set()
    for seed in range(40):
        here = world(seed)
        ours, theirs = pair(here)
        for _ in range(3):
            hello(ours)
        ours.node.end(cleanly=False)
        rest(here)
        try:
            while theirs.recv(1000):
                pass
            how = "closed"
        except ConnectionResetError:
            how = "reset"
        heard.add((len(here.trace), how))
    assert {count for count, _ in heard} == {0, 1, 2, 3}
    assert {how for _, how in heard} == {"closed", "reset"}


def test_nobody_connects_to_what_has_ended() -> None:
    here = world()
    listener = SimulatedListener(Node(here, "job manager"))
    listener.node.end(cleanly=True)
    with pytest.raises(ConnectionRefusedError):
        connect(Node(here, "worker-1"), listener)


def test_a_payload_cannot_be_read_any_more_when_it_was_released() -> None:
    assert {free_before_release(seed) for seed in range(10)} == {0, 1}, "some links copy, the others hand over"


def free_before_release(seed: int) -> int:
    here = world(seed)
    carriers: dict[str, SimulatedCarrier] = {}
    came: list[Payload | None] = []

    def accept(link: Link) -> None:
        link.on_frame = lambda header, payload: came.append(payload)

    for name in ("worker-1", "worker-2"):
        context = CarrierContext(name, "", b"", _nothing, _nothing, _nothing, accept, _never, _nothing)
        SimulatedCarrier(Node(here, name), carriers).start(context)
    one = carriers["worker-1"]
    pool = NetworkBufferPool(one.segments(1, 64))
    buffer = pool.create_pool(1, on_available=lambda: None).request()
    assert buffer is not None
    buffer.memory[:5] = b"hello"
    buffer.size = 5
    one.connect("worker-2", "simulated:worker-2").send(b"\x02\0\0\0\0", buffer)
    rest(here)
    (payload,) = came
    assert payload is not None
    free = pool.available
    data = payload.data
    assert bytes(data) == b"hello"
    payload.release()
    with pytest.raises(ValueError, match="released"):
        bytes(data)
    rest(here)
    assert pool.available == 1
    return free


def _nothing(*arguments: object) -> None: ...


def _never(action: Callable[[], None], after_s: float) -> Scheduled:
    return Scheduled(action)


def test_work_beside_a_loop_is_told_of_later_and_never_to_the_dead() -> None:
    here = world()
    node = Node(here, "worker-1")
    beside = SimulatedBackground(node)
    told: list[object] = []
    beside.run(lambda: 1, lambda result, error: told.append(result))
    beside.run(lambda: 1 // 0, lambda result, error: told.append(type(error)))
    assert told == []
    rest(here)
    assert told == [1, ZeroDivisionError]
    beside.run(lambda: 2, lambda result, error: told.append(result))
    node.end(cleanly=False)
    rest(here)
    assert told == [1, ZeroDivisionError]
