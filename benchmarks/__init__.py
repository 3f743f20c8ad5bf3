"""The measured programs, their baselines and their table: ``make bench``, or ``python -m benchmarks --help``.

Each benchmark is a module with a function ``measure(plan)`` that yields rows. What compares with a plain Python
loop does the same work on both sides, calls the same functions and has its results compared before it is timed.
"""
