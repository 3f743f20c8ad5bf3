"""Workers hosted on Spark's executors: the tasks of a barrier stage."""
