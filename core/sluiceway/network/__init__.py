"""Data exchange between tasks: result partitions, channels with credit, input gates, barrier alignment.

Each channel has a number that its consumer assigns when it opens the channel at the producer's worker, with the
initial credit. From then on the producer sends frames: every one with the channel's number, a sequence number and
the number of batches that wait for credit. A batch costs one credit; it goes along with the header where it is
small, and otherwise is cut into as many pieces as it needs segments. Control elements cost no credit and keep
their place, unless they are sent to overtake. The consumer grants by the ledger of its gate.
"""
