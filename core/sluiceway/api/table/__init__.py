"""Streams in columns: the methods that add steps to them, and the checks of their arguments.

Needs pyarrow, numpy and Narwhals; nothing in the rest of the package imports it before a pipeline has columns.
"""

from sluiceway.util.install_hints import install_command

try:
    import narwhals  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as error:
    from sluiceway.errors import MissingExtraError

    raise MissingExtraError(
        f"streams in columns need pyarrow, numpy and Narwhals ({error}): {install_command('sluiceway[columns]')}"
    ) from error
