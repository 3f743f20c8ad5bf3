"""SQL for reading streams in columns: a query becomes steps of :class:`~sluiceway.table.TableStream`.

Needs sqlglot beside the libraries of columns; nothing else in the package imports it before a query is given.
"""

from sluiceway.util.install_hints import install_command

try:
    import sqlglot  # noqa: F401
except ImportError as error:
    from sluiceway.errors import MissingExtraError

    raise MissingExtraError(f"sql() needs sqlglot ({error}): {install_command('sluiceway[sql-query]')}") from error
