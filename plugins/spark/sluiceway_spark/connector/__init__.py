"""``SparkSource`` and ``SparkSink``, with their enumerator, reader and writer."""
