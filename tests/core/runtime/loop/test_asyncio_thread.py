"""Calls of coroutine functions in an event loop."""

import asyncio
import gc
import warnings

from sluiceway.operators import Call, CallCancelledError
from sluiceway.runtime.loop.asyncio_thread import LoopCalls


async def ask(key: int) -> int:
    return key


def test_a_call_that_is_cancelled_before_its_first_step_leaves_no_warning() -> None:
    loop = asyncio.new_event_loop()
    calls = LoopCalls(loop, loop.call_soon, loop.run_until_complete, lambda: None)
    # Both are there when the loop has its turn, as when another coroutine has blocked it for the timeout.
    calls.start([Call("call", ask, 1, keep=abs)])
    calls.cancel(["call"])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        calls.close()
        gc.collect()
    loop.close()
    assert warned == []
    (ended,) = calls.take()
    assert (ended.token, ended.result, type(ended.error)) == ("call", None, CallCancelledError)
