"""Registry of plugins: the hooks they implement, and the manager that loads what they offer."""

from __future__ import annotations

from sluiceway.plugins.manager import Offered, Plugin, PluginManager, Problem, default_manager

__all__ = ["Offered", "Plugin", "PluginManager", "Problem", "default_manager"]
