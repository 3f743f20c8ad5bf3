"""Run a pipeline beside other work of an asyncio program, watch it, and stop it.

Run it::

    python examples/background.py [--assert]
"""

import asyncio
import sys

import sluiceway as sw

flow = sw.Pipeline("background")
squares = flow.generate(lambda n: n * n, rate=2000).collect()


async def main() -> sw.JobResult:
    """Let the pipeline run until it has made a hundred squares."""
    handle = await flow.start()
    while len(squares) < 100:
        await asyncio.sleep(0.01)
    print(f"{handle.metrics().records_in} records so far, {handle.status.value}")
    handle.cancel()
    return await handle.result()


if __name__ == "__main__":
    result = asyncio.run(main())
    print(f"{result.status.value} after {len(squares)} squares")
    if "--assert" in sys.argv:
        assert result.status is sw.JobStatus.CANCELED
        assert squares[:4] == [0, 1, 4, 9]
        assert len(squares) >= 100
