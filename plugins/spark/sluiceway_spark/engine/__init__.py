"""The engine ``spark``: choice of batch job, streaming query or hosted workers, and capabilities of each."""
