"""Rows that steps keep in state until event time has passed them, in orders in which they are found again."""
