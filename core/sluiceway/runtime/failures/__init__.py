"""Texts of failures: record, step and subtask added to an exception, within bounds."""
