"""The metrics reporters that every installation has."""
