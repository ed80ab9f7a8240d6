"""Phases: the kernels of the runtime, each a WGSL function and the record of its parameters.

This package also defines the GPU memory layout of weights, of the key-value cache and of the state
of a step. `rdrr_runtime.compile` decides which phase runs an op.
"""
