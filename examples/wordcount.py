"""Count words: the first pipeline.

Run it::

    sluiceway run examples/wordcount.py
    python examples/wordcount.py [--assert]
"""

import sys

import sluiceway as sw

TEXT = ["To be, or not to be,", "that is the question"]

flow = sw.Pipeline("wordcount")
counts = (
    flow.from_collection(TEXT)
    .flat_map(lambda line: line.lower().replace(",", "").split())
    .key_by(lambda word: word)
    .count()
)
counts.print()
seen = counts.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        # A running count comes out for every word that goes in; the last one of a word is its total.
        assert len(seen) == 10
        assert dict(seen) == {"to": 2, "be": 2, "or": 1, "not": 1, "that": 1, "is": 1, "the": 1, "question": 1}
