"""Options of a run: their names, values and defaults, and where each value comes from."""
