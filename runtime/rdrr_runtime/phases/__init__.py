"""Phases: one WGSL function each, and beside it its record of operands and constants.

Here too is how weights, the key-value cache and the state of a step lie in GPU memory. Which phase
serves an op is decided in `rdrr_runtime.compile`.
"""
