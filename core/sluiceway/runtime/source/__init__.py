"""Sources with their own thread, and the driver of enumerators."""
