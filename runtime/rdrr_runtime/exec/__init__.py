"""Execution: a model laid out in GPU memory, and passes that are bound once and replayed.

`footprint` predicts the memory of a model and `traffic` the bytes that a phase must move. Which
pass runs when is decided by the backends and by `rdrr_runtime.sequences`.
"""
