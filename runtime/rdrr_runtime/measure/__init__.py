"""Measurement of running models: the profiler and the tuner."""
