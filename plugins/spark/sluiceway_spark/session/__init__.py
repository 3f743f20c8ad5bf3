"""Spark sessions: their configuration, the Java they run on, Spark Connect."""
