"""Checks of a program before it runs."""
