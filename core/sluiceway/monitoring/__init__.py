"""View of clusters and jobs for people and tools: facts, rates, diagnosis, and the contracts of web servers."""
