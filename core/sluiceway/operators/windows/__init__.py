"""Operators of windows: the general one, those of sessions, and those that store windows in slices.

``factory.py`` chooses among them.
"""
