"""Jobs whose channels between workers need more buffers than there are say so; with just enough they run."""

from __future__ import annotations

import pytest

import sluiceway as sw
from sluiceway.errors import SluicewayError


def test_too_few_buffers_are_refused_with_what_to_do() -> None:
    flow = sw.Pipeline("exchange", parallelism=6)
    flow.from_sequence(0, 9).rebalance().map(lambda n: n).collect()
    with pytest.raises(SluicewayError, match=r"the worker's 2 are promised.*: raise the option 'network-buffers'"):
        flow.run(workers=2, network_buffers=2)


@pytest.mark.parametrize("transport", ["shm", "zmq"])
def test_as_few_buffers_as_channels_are_enough(transport: str) -> None:
    if transport == "zmq":
        pytest.importorskip("zmq", reason="needs pyzmq")
    flow = sw.Pipeline("exchange", parallelism=2)
    lengths = flow.from_sequence(0, 999).map(lambda n: "x" * 600 + str(n)).rebalance().map(len).collect()
    flow.run(workers=2, network_buffers=2, transport=transport, batch_size=10)
    assert sorted(lengths) == sorted(600 + len(str(n)) for n in range(1000))
