"""Sort readings into good, suspicious and unreadable ones: one step with several outputs.

Run it::

    sluiceway run examples/side_outputs.py
    python examples/side_outputs.py [--assert]
"""

import sys
from collections.abc import Iterator

import sluiceway as sw

LINES = ["cellar 12.5", "attic 31", "garden -80", "cellar warm", "attic 29.5"]

SUSPICIOUS = sw.OutputTag[tuple[str, float]]("suspicious")
UNREADABLE = sw.OutputTag[str]("unreadable")


def parse(line: str, ctx: sw.ProcessFunction.Context) -> Iterator[tuple[str, float]]:
    """Yield numbers to the main output; send the rest to a side output with ctx.output()."""
    room, _, text = line.partition(" ")
    try:
        degrees = float(text)
    except ValueError:
        ctx.output(UNREADABLE, line)
        return
    if -50 <= degrees <= 60:
        yield room, degrees
    else:
        ctx.output(SUSPICIOUS, (room, degrees))


flow = sw.Pipeline("side outputs")
readings = flow.from_collection(LINES).process(parse)
hottest = readings.key_by(lambda reading: reading[0]).max(1)
suspicious = readings.get_side_output(SUSPICIOUS)
unreadable = readings.get_side_output(UNREADABLE)

hottest.print("hottest so far")
suspicious.print("suspicious")
unreadable.print("unreadable")

seen = hottest.collect(), suspicious.collect(), unreadable.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        assert seen[0] == [("cellar", 12.5), ("attic", 31.0), ("attic", 31.0)]
        assert seen[1] == [("garden", -80.0)]
        assert seen[2] == ["cellar warm"]
