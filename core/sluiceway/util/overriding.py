"""Mark of a method that implements or replaces one of a base class: ``typing.override`` of Python 3.12.

A method with the mark and without a docstring does what its base class says of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

__all__ = ["override"]

if TYPE_CHECKING:
    from typing_extensions import override
elif sys.version_info >= (3, 12):
    from typing import override
else:

    def override(method):
        """Return the method as it is."""
        return method
