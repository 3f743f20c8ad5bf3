"""Suites that a plugin's own tests subclass to show that it keeps its contract.

Each suite is in a module of its own: a plain class whose ``test_...`` methods pytest collects in a subclass.
"""

import sys
from pkgutil import iter_modules

if "pytest" in sys.modules:  # then plain asserts in the suites say what they compared
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{m.name}" for m in iter_modules(__path__)))
