"""What measures a model that runs: the profiler and the tuner."""
