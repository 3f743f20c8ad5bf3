"""Sources with a thread of their own, and the driver of enumerators."""
