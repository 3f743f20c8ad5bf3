"""From a program to what runs: stream graph, chaining, job graph, execution graph, and their pictures."""
